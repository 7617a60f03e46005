"""Zamba: every block gets the embedding output as well as the hidden states.

`original_hidden_states` carries gradient into the shared transformer of every hybrid layer;
`transformer_hidden_states` is what that transformer returned. Released 4.57.6 checkpoints by an inline
branch over plain layers; upstream made them layers for 5.0 (transformers #41818), with
`original_hidden_states` positional. ZambaHybridLayer holds a ZambaMambaDecoderLayer: both are layers then,
and the inner one is computed three times (CKPT006).
"""

from ckpt_surgery.model_patches.family import FamilyFacts

FACTS = FamilyFacts(
    families=("zamba", "zamba2"),
    gradient=frozenset({"original_hidden_states", "transformer_hidden_states"}),
)
