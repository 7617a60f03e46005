"""Hiera: the decoder of masked pretraining has sizes of its own (transformers 4.52 to 5.24.0)."""

TINY = {"hiera": {"decoder_hidden_size": 64, "decoder_depth": 2, "decoder_num_heads": 4}}
