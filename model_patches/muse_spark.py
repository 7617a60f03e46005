"""Muse Spark: whole frames of a waveform, and merged patches (transformers 5.23.0 to 5.24.0)."""

TINY = {"muse_spark": {"out_hidden_size": 256}}
INPUTS = {("muse_spark", "muse_spark_audio"): {"input_values": "floats(batch, 4 * samples_per_token)"}}
