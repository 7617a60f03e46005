"""NLLB-MoE: with router logits, its head indexes the decoder's outputs as if there were always a cache among them.

With `use_cache=False`, and so with checkpointing, the forward then raises IndexError (measured on 4.57.6).
"""

from ckpt_surgery.model_patches.family import FamilyFacts

FACTS = FamilyFacts(needs_cache=frozenset({"NllbMoeDecoder"}))
