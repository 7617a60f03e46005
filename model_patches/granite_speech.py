"""Granite Speech: a Conformer with context windows takes features as hidden states (transformers 4.52 to 5.24.0)."""

TINY = {
    "granite_speech5_encoder": {"context_size": 16},
    ("granite_speech_encoder", "granite_speech_plus_encoder"): {"context_size": 16, "max_pos_emb": 32},
}
FITTED = {
    ("granite_speech", "granite_speech_plus"): {"projector_config": {"encoder_hidden_size": 1024}},
    ("granite_speech_encoder", "granite_speech_plus_encoder"): {},
}
INPUTS = {
    ("granite_speech", "granite_speech_plus"): {"input_features_mask": None},
    ("GraniteSpeechCTCEncoder", "GraniteSpeechPlusCTCEncoder"): {"hidden_states": "floats(batch, 64, input_dim)"},
    ("granite_speech5_ctc", "granite_speech5_encoder"): {
        "input_features": "floats(batch, 64, 4 * mels)",
        "attention_mask": "ones(batch, 64)",
    },
}
