"""Gemma 3n: its upper layers take the keys of lower ones from the cache, and compute their own where there is none.

Without a cache 5.0.0, 5.3.0 and 5.5.4 train another model: the loss of a tiny one goes from 4.63784 to 4.63844, and
124 of its 145 gradients are others. Since 5.6.2 the keys are handed on without the cache; 4.57.6 makes no cache in
training.
"""

from ckpt_surgery.model_patches.family import FamilyFacts

FACTS = FamilyFacts(cache_decides={"Gemma3nTextModel": "5.6.2"})
