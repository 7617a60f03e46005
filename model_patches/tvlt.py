"""TVLT: a spectrogram of the size of its patch embeddings, beside video frames (transformers 4.52 to 4.57.6)."""

INPUTS = {"tvlt": {"audio_values": "floats(batch, 1, spectrogram_length, frequency_length)"}}
