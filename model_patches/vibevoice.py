"""VibeVoice: waveforms of whole frames, with one channel (transformers 5.23.0 to 5.24.0)."""

_TOKENIZER = (
    "vibevoice_acoustic_tokenizer",
    "vibevoice_acoustic_tokenizer_decoder",
    "vibevoice_acoustic_tokenizer_encoder",
)
TINY = {_TOKENIZER: {"num_filters": 4}}
INPUTS = {
    ("vibevoice", "vibevoice_acoustic_tokenizer", "vibevoice_asr"): {
        "input_values": "floats(batch, 1, 4 * hop_length)",
        "padding_mask": "ones(batch, 4 * hop_length)",
    },
    "VibeVoiceAcousticTokenizerDecoderModel": {"hidden_states": "floats(batch, hidden_size, 8)"},
    "VibeVoiceAcousticTokenizerEncoderModel": {"hidden_states": "floats(batch, 1, 4 * hop_length)"},
}
