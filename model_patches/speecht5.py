"""SpeechT5: prenets for text and speech; the bare model takes hidden states (transformers 4.52 to 5.24.0)."""

_STATES = "floats(batch, length, hidden_size)"
INPUTS = {
    "SpeechT5ForSpeechToSpeech": {"labels": "floats(batch, 8, mels)"},
    "SpeechT5HifiGan": {"spectrogram": "floats(batch, 8, model_in_dim)"},
    "SpeechT5Model": {"input_values": _STATES, "decoder_input_values": _STATES},
}
