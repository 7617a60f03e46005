"""T5Gemma: an encoder that is no encoder-decoder (4.57.6 to 5.24.0)."""

OPTIONS = {"T5GemmaEncoderModel": {"is_encoder_decoder": False}}
