"""Voxtral: in real time it takes as many frames of audio as its tokens stand for (4.57.6 to 5.24.0)."""

TINY = {"voxtral": {"audio_token_id": 120}}
INPUTS = {
    "voxtral_realtime": {"input_features": "floats(batch, mels, 2 * downsample_factor * length)"},
    "VoxtralRealtimeTextModel": {"+t_cond": "floats(1, 1, hidden_size)"},  # the embedding of the delay
}
