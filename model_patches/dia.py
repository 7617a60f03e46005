"""Dia: decoder tokens with a column for each channel of codes (transformers 4.57.6 to 5.24.0)."""

PARTS = {"dia": {"DiaEncoder": "DiaEncoderConfig"}}
INPUTS = {"dia": {"decoder_input_ids": "tokens(batch, length, decoder_config.num_channels)"}}
