"""pi0: its expert on actions attends to the cache that the vision-language model has filled, also in training.

Without that cache the forward raises AttributeError (measured on 5.23.0, with transformers' own checkpointing).
"""

from ckpt_surgery.model_patches.family import FamilyFacts

FACTS = FamilyFacts(reads_caches=frozenset({"PI0Model"}))
