"""Voxtral: the real-time model takes as many audio frames as its tokens stand for (transformers 4.57.6 to 5.24.0)."""

TINY = {"voxtral": {"audio_token_id": 120}}
INPUTS = {
    "voxtral_realtime": {"input_features": "floats(batch, mels, 2 * downsample_factor * length)"},
    "VoxtralRealtimeTextModel": {"+t_cond": "floats(1, 1, hidden_size)"},  # the embedding of the delay
}
