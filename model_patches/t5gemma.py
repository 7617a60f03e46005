"""T5Gemma: its encoder takes a configuration that is not an encoder-decoder (transformers 4.57.6 to 5.24.0)."""

OPTIONS = {"T5GemmaEncoderModel": {"is_encoder_decoder": False}}
