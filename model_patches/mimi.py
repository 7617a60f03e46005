"""Mimi and the tokenizer of Pocket TTS: decoders of latents (4.52 to 5.24.0)."""

_CODEC = {"num_filters": 4}
TINY = {"mimi": _CODEC}
INPUTS = {("MimiDecoderModel", "PocketTTSAudioTokenizerDecoderModel"): {"latents": "floats(batch, hidden_size, 8)"}}
