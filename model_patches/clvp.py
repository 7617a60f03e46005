"""CLVP: three stacks, one of them of attention modules.

`ClvpEncoderLayer` and `ClvpDecoderLayer` are plain up to 5.23.0. The conditioning encoder's
`mel_attn_blocks` hold `ClvpSelfAttention`, which the encoder and decoder layers also hold: as a layer it would
be computed three times there, so this stack gets a subclass of its own. In 4.57.6 the
decoder's inline branch passes `cache_position` where the block takes `use_cache`. Upstream left CLVP an
exception in transformers #38913 and #41818.
"""

DERIVED = {"mel_attn_blocks": "ClvpMelAttentionBlock"}
TINY = {
    "clvp_decoder": {"num_attention_heads": 2, "decoder_fixing_codes": [83, 45, 45, 100]},
    "clvp_encoder": {"num_attention_heads": 2},  # its rotary part has at least 32 channels
}
PARTS = {
    "clvp": {  # in transformers 4 they name the configuration of the whole model
        "ClvpDecoder": "ClvpDecoderConfig",
        "ClvpEncoder": "ClvpEncoderConfig",
        "ClvpForCausalLM": "ClvpDecoderConfig",
        "ClvpModel": "ClvpDecoderConfig",
    }
}
