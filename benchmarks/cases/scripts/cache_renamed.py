"""transformers 5.24 renames `past_key_values`: `verify` measures its state there too, or says that it cannot."""

import inspect

import torch
from transformers import MegatronBertConfig, MegatronBertForCausalLM

from benchmarks.cases.toys import tokens
from ckpt_surgery import verify

DOORS = {"plain": {"says": ["state"]}}

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
model = MegatronBertForCausalLM(MegatronBertConfig(num_hidden_layers=2, is_decoder=True, **sizes)).train()
print("takes:", {"cache", "past_key_values"} & set(inspect.signature(model.forward).parameters))
report = verify(model, tokens())
print(report)
