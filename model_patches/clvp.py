"""CLVP: three stacks of plain modules, one of which holds attention modules (transformers 4.52 to 5.24.0).

The conditioning encoder's `mel_attn_blocks` hold `ClvpSelfAttention`, which is also a part of `ClvpEncoderLayer` and
`ClvpDecoderLayer`: if it were a layer, it would be computed three times there, so this stack gets a subclass of its
own. In 4.57.6 the decoder's inline branch passes `cache_position` where the block takes `use_cache`. The pull requests
that made blocks of other models layers (transformers #38913 and #41818) left CLVP out.
"""

DERIVED = {"mel_attn_blocks": "ClvpMelAttentionBlock"}
TINY = {
    "clvp_decoder": {"num_attention_heads": 2, "decoder_fixing_codes": [83, 45, 45, 100]},
    "clvp_encoder": {"num_attention_heads": 2},  # its rotary part takes at least 32 channels
}
PARTS = {
    "clvp": {  # in transformers 4 these classes name the configuration of the whole model
        "ClvpDecoder": "ClvpDecoderConfig",
        "ClvpEncoder": "ClvpEncoderConfig",
        "ClvpForCausalLM": "ClvpDecoderConfig",
        "ClvpModel": "ClvpDecoderConfig",
    }
}
