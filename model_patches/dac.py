"""DAC: its latent width doubles with each ratio (transformers 4.52 to 5.24.0)."""

TINY = {"dac": {"encoder_hidden_size": 8, "decoder_hidden_size": 64, "hidden_size": 128}}
