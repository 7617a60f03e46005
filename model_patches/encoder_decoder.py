"""Models made of two others: their configurations have no defaults of their own (transformers 4.52 to 5.24.0)."""

_DECODER = {"model_type": "bert", "is_decoder": True, "add_cross_attention": True}
_TOKENS = {"decoder_start_token_id": 1, "pad_token_id": 0}
DEFAULTS = {
    "encoder-decoder": {"encoder": {"model_type": "bert"}, "decoder": _DECODER, **_TOKENS},
    "speech-encoder-decoder": {"encoder": {"model_type": "wav2vec2"}, "decoder": _DECODER, **_TOKENS},
    "vision-encoder-decoder": {"encoder": {"model_type": "vit"}, "decoder": _DECODER, **_TOKENS},
    "vision-text-dual-encoder": {"vision_config": {"model_type": "vit"}, "text_config": {"model_type": "bert"}},
}
