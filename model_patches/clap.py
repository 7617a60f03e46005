"""CLAP: its encoder cuts spectrograms with one channel into patches (transformers 4.52 to 5.24.0)."""

TINY = {"clap_audio_model": {"hidden_size": 128}}  # the width of the last stage
INPUTS = {("clap", "clap_audio_model"): {"input_features": "floats(batch, 1, 64, mels)"}}
