"""Perceiver: its learned position embeddings can outweigh its blocks many times (all releases)."""

from ckpt_surgery.model_patches.family import FamilyFacts

FACTS = FamilyFacts(blocks=frozenset({"PerceiverLayer"}))
