"""Moshi: its depth decoder gets the mask of the text, which has other rows, and gets along with it through a cache.

Without a cache the forward raises RuntimeError (measured on 5.23.0, with transformers' own checkpointing).
"""

from ckpt_surgery.model_patches.family import FamilyFacts

FACTS = FamilyFacts(needs_cache=frozenset({"MoshiDepthDecoder"}))
