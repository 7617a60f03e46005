"""checkpoint_wrapper around layers that fill a cache: the recompute fills it again (transformers #34928)."""

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from benchmarks.cases.toys import fit, llama

NEEDS = ["transformers<5"]
CRASH = {"exit": 1, "says": ["CheckpointError", "use_cache"], "never": ["--wrap", "proved"]}
DOORS = {"plain": {"exit": 1}, "run": CRASH, "watch": CRASH}

model = llama()
apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, LlamaDecoderLayer))
fit(model)
