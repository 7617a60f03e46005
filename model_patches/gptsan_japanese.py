"""GPTSAN-japanese: its model takes a cache out of every block's output, also where none was asked for.

With `use_cache=False` the forward raises IndexError (measured on 4.57.6, where the model is deprecated).
"""

from ckpt_surgery.model_patches.family import FamilyFacts

FACTS = FamilyFacts(needs_cache=frozenset({"GPTSanJapaneseModel"}))
