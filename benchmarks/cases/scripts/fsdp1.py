"""FSDP1 shards the layers, with original parameters and without."""

import functools
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from benchmarks.cases.toys import fit, llama, tokens

RANKS = 2
DOORS = {"run": {}, "watch": {}}

dist.init_process_group("gloo")
policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer})
for original in (True, False):
    model = llama()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    place = torch.device("cpu")
    sharded = FullyShardedDataParallel(model, auto_wrap_policy=policy, use_orig_params=original, device_id=place)
    if os.environ["RANK"] == "0":
        fit(sharded)
    else:
        optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
        for _ in range(4):
            sharded(**tokens()).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
dist.destroy_process_group()
