"""FastSpeech2Conformer: the durations of the tokens add up to the spectrogram's (transformers 4.52 to 5.24.0)."""

INPUTS = {
    ("fastspeech2_conformer", "fastspeech2_conformer_with_hifigan"): {
        "spectrogram_labels": "floats(batch, 2 * length, num_mel_bins)",
        "duration_labels": "full(batch, length, value=2)",
        "pitch_labels": "floats(batch, length, 1)",
        "energy_labels": "floats(batch, length, 1)",
    },
    "FastSpeech2ConformerHifiGan": {"spectrogram": "floats(batch, 8, model_in_dim)"},
}
