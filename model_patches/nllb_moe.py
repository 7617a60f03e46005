"""NLLB-MoE: with router logits, its head indexes the decoder's outputs as if there were always a cache among them.

With `use_cache=False`, and so with checkpointing, the forward then raises IndexError (measured on 4.57.6).
"""

NEEDS_CACHE = {"NllbMoeDecoder"}
PARTS = {"nllb_moe": {"NllbMoeEncoder": "NllbMoeConfig", "NllbMoeDecoder": "NllbMoeConfig"}}
