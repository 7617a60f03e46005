"""Perception Encoders: the loss's scale starts at 0, as do other gradients (transformers 5.23.0 to 5.24.0)."""

_COMPARED = {"return_loss": False}
_CLIP = {
    "input_values": "floats(batch, 1, 8 * hop_length)",
    "pixel_values_videos": "floats(batch, 4, 3, 32, 32)",
    **_COMPARED,
}
INPUTS = {("pe_audio", "pe_video"): _COMPARED, ("pe_audio_video", "pe_audio_video_encoder"): _CLIP}
