"""DiffusionGemma: the encoder fills the cache that the decoder reads.

A checkpointing layer is given no cache, so an encoder that checkpoints leaves the decoder without its
prefix: the encoder's text layer stays plain (5.23.0, where its docstring says the same). The decoder's
layers set `_can_checkpoint_with_cache`: they read the cache and never write it.
"""

from ckpt_surgery.model_patches.family import FamilyFacts

FACTS = FamilyFacts(
    not_blocks=frozenset({"DiffusionGemmaEncoderTextLayer"}), containers=frozenset({"shared_kv_states"})
)
