"""FSDP1 shards the layers, with original parameters and without."""

import functools

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from benchmarks.cases.toys import fit, llama

RANKS = 2
DOORS = {"run": {}, "watch": {}}

dist.init_process_group("gloo")
policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer})
for original in (True, False):
    model = llama()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    place = torch.device("cpu")
    sharded = FullyShardedDataParallel(model, auto_wrap_policy=policy, use_orig_params=original, device_id=place)
    fit(sharded, quiet=dist.get_rank() > 0)
dist.destroy_process_group()
