"""X-Codec 2 and NeuCodec: a waveform and the features of the same audio (transformers 5.23.0 to 5.24.0)."""

TINY = {("neucodec", "xcodec2"): {"encoder_hidden_size": 8, "quantization_dim": 128}}
INPUTS = {
    "neucodec": {
        "input_values": "floats(batch, 1, 16 * encoder_hop_length)",
        "input_features": "floats(batch, 16, mels)",
    },
    "xcodec2": {"input_values": "floats(batch, 1, 16 * hop_length)", "input_features": "floats(batch, 16, mels)"},
}
