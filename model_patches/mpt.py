"""MPT: `position_bias` is the fixed ALiBi table, not the learned bias of the T5 family."""

from ckpt_surgery.model_patches.family import FamilyFacts

FACTS = FamilyFacts(not_gradient=frozenset({"position_bias"}))
