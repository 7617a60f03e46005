"""Layers that FSDP's utility checkpoints go on writing a cache, once in the forward and once in the recompute.

Only a model whose own checkpointing is on knows that it has to do without. `use_cache` is on by default.
"""

from functools import partial

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from benchmarks.faults.script import error, train

FAULT = {
    "source": "https://github.com/shihao1895/MemoryVLA/issues/18",
    "kind": "cache written",
    "saw": "CheckpointError: a sequence of 286 in the forward has 572 in the recompute",
    "right": "training makes no cache",
    "cause": ["use_cache", "past_key_values", "writes into the cache"],
}
MENDED = False


def policy(forward):
    return checkpoint_wrapper(forward, checkpoint_impl=CheckpointImpl.NO_REENTRANT)


def make():
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=64,
    )
    if MENDED:
        config.use_cache = False
    model = LlamaForCausalLM(config)
    apply_activation_checkpointing(
        model, checkpoint_wrapper_fn=policy, check_fn=lambda module: isinstance(module, LlamaDecoderLayer)
    )
    ids = torch.arange(24).reshape(2, 12)
    padding = torch.ones_like(ids)
    padding[1, -3:] = 0
    return model.train(), {"input_ids": ids, "attention_mask": padding, "labels": ids}


def call(layer, *args, **kwargs):
    return layer(*args, **kwargs)


def switch(model, mode):
    for layer in model.model.layers:
        layer.checkpoint_fn = partial(checkpoint, use_reentrant=False) if mode else call


def off(model):
    switch(model, None)


MODES = ("non_reentrant",)


def symptom():
    return error(lambda: train(make, steps=1))


if __name__ == "__main__":
    train(make)
