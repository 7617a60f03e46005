"""MusicGen: a row of tokens for each sample and codebook (transformers 4.52 to 5.24.0)."""

_ENCODERS = {"text_encoder": {"model_type": "t5"}, "audio_encoder": {"model_type": "encodec"}}
DEFAULTS = {
    "musicgen": {**_ENCODERS, "decoder": {"model_type": "musicgen_decoder"}},
    "musicgen_melody": {**_ENCODERS, "decoder": {"model_type": "musicgen_melody_decoder"}},
}
PARTS = {
    "musicgen": {"MusicgenDecoder": "MusicgenDecoderConfig"},
    "musicgen_melody": {"MusicgenMelodyDecoder": "MusicgenMelodyDecoderConfig"},
}
_CODES = "tokens(batch * num_codebooks, length)"
INPUTS = {
    ("musicgen", "musicgen_melody"): {"decoder_input_ids": _CODES},
    ("musicgen_decoder", "musicgen_melody_decoder"): {"input_ids": _CODES},
}
