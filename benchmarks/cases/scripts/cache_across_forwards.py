"""A cache that one training forward fills and the next one reads: read, or refused by name; never dropped."""

import torch
from transformers import DynamicCache

from benchmarks.cases.toys import llama
from ckpt_surgery import guard, wrap_blocks
from ckpt_surgery.errors import CkptSurgeryError

DOORS = {"plain": {"never": [" 3 of 3 blocks proved", " 2 of 2 blocks proved"]}}


def gradient(model):
    cache = DynamicCache()
    first, second = torch.arange(1, 25).reshape(2, 2, 6)
    model(input_ids=first, past_key_values=cache)
    model(input_ids=second, past_key_values=cache, labels=second).loss.backward()
    return model.model.layers[0].mlp.up_proj.weight.grad


expected = gradient(llama())
for options in ({}, {"every_n": 2}):
    model = llama()
    wrap_blocks(model, **options)
    try:
        with guard(model) as watch:
            torch.testing.assert_close(gradient(model), expected)
        print(watch.report())
    except CkptSurgeryError as refusal:
        print(refusal)
