"""RWKV: `state` is the recurrent state, a list of tensors that the block returns updated (all releases)."""

from ckpt_surgery.model_patches.family import FamilyFacts

FACTS = FamilyFacts(past_state=frozenset({"RwkvBlock.state"}))
