"""ALBERT: one layer runs in every place of its stack, so that nothing is repeated among its modules (all releases)."""

from ckpt_surgery.model_patches.family import FamilyFacts

FACTS = FamilyFacts(blocks=frozenset({"AlbertLayer"}))
