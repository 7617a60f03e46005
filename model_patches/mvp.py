"""MVP: learned prompts reach the blocks as dicts of `prev_key` and `prev_value` tensors (all releases)."""

from ckpt_surgery.model_patches.family import FamilyFacts

FACTS = FamilyFacts(containers=frozenset({"self_attn_prompt", "cross_attn_prompt"}))
