"""TVLT: a spectrogram as large as the embeddings of its patches, beside frames of a video (4.52 to 4.57.6)."""

INPUTS = {"tvlt": {"audio_values": "floats(batch, 1, spectrogram_length, frequency_length)"}}
