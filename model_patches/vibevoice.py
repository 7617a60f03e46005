"""VibeVoice: waveforms of whole frames, with one channel (5.23.0 to 5.24.0)."""

_CODEC = {"num_filters": 4}
TINY = {
    "vibevoice_acoustic_tokenizer": _CODEC,
    "vibevoice_acoustic_tokenizer_decoder": _CODEC,
    "vibevoice_acoustic_tokenizer_encoder": _CODEC,
}
_WAVEFORM = {"input_values": "floats(batch, 1, 4 * hop_length)", "padding_mask": "ones(batch, 4 * hop_length)"}
INPUTS = {
    ("vibevoice", "vibevoice_acoustic_tokenizer", "vibevoice_asr"): _WAVEFORM,
    "VibeVoiceAcousticTokenizerDecoderModel": {"hidden_states": "floats(batch, hidden_size, 8)"},
    "VibeVoiceAcousticTokenizerEncoderModel": {"hidden_states": "floats(batch, 1, 4 * hop_length)"},
}
