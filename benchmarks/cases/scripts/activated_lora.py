"""Activated LoRA hands its offsets on by hooks on each layer (PEFT #2826)."""

import torch
from peft import LoraConfig, get_peft_model

from benchmarks.cases.toys import fit, llama

NEEDS = ["peft>=0.18"]
DOORS = {"run": {}, "watch": {}}

torch.manual_seed(1)
ids = torch.randint(10, 64, (2, 16))
ids[:, 6:8] = torch.tensor([7, 8])
targets = ["q_proj", "k_proj", "v_proj"]
lora = LoraConfig("CAUSAL_LM", r=4, target_modules=targets, alora_invocation_tokens=[7, 8], init_lora_weights=False)
model = get_peft_model(llama(), lora).train()
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
fit(model, lambda: model(input_ids=ids, labels=ids).loss)
