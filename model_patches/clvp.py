"""CLVP: three stacks, one of them of attention modules.

`ClvpEncoderLayer` and `ClvpDecoderLayer` are plain up to 5.23.0. The conditioning encoder's
`mel_attn_blocks` hold `ClvpSelfAttention`, which the encoder and decoder layers also hold: as a layer it would
be computed three times there, so this stack gets a subclass of its own. In 4.57.6 the
decoder's inline branch passes `cache_position` where the block takes `use_cache`. Upstream left CLVP an
exception in transformers #38913 and #41818.
"""

from ckpt_surgery.model_patches.family import FamilyFacts

FACTS = FamilyFacts(derived={"mel_attn_blocks": "ClvpMelAttentionBlock"})
