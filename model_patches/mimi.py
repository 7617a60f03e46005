"""Mimi and the tokenizer of Pocket TTS: decoders of latents (transformers 4.52 to 5.24.0)."""

TINY = {"mimi": {"num_filters": 4}}
INPUTS = {("MimiDecoderModel", "PocketTTSAudioTokenizerDecoderModel"): {"latents": "floats(batch, hidden_size, 8)"}}
