"""Gemma3n and Gemma4: blocks share keys and values through the dict `shared_kv_states`.

The blocks write into the dict they are given. With `use_reentrant=True` every gradient is there and the
values are wrong (measured on 5.23.0): the recompute reads and writes the same dict.

Up to 5.5.4 the upper layers of Gemma3n take the keys of lower ones from the cache, and compute their own where there
is none: without a cache 5.0.0, 5.3.0 and 5.5.4 train another model (the loss of a tiny one goes from 4.63784 to
4.63844, and 124 of its 145 gradients are others). 4.57.6 makes no cache in training.
"""

from ckpt_surgery.model_patches.family import FamilyFacts

FACTS = FamilyFacts(
    families=("gemma3n", "gemma4", "gemma4_unified", "mistral_large4"),
    containers=frozenset({"shared_kv_states"}),
    cache_decides={"Gemma3nTextModel": "5.6.2"},
)
