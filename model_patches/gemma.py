"""Gemma3n and Gemma4: blocks share keys and values through the dict `shared_kv_states`.

The blocks write into the dict they are given. With `use_reentrant=True` every gradient is there and the
values are wrong (measured on 5.23.0): the recompute reads and writes the same dict.
"""

from ckpt_surgery.model_patches.family import FamilyFacts

FACTS = FamilyFacts(
    families=("gemma3n", "gemma4", "gemma4_unified", "mistral_large4"),
    containers=frozenset({"shared_kv_states"}),
)
