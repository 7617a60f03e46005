"""Adapters in a frozen encoder that stays in evaluation mode (diffusers #9850, #1848)."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import CLIPTextConfig, CLIPTextModel

from benchmarks.cases.toys import fit, tokens

NEEDS = ["peft"]
TOLD = {"says": ["in evaluation mode"], "never": ["no model was trained", "--wrap"]}
DOORS = {"run": TOLD, "watch": TOLD}

torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "max_position_embeddings": 16}
encoder = CLIPTextModel(CLIPTextConfig(vocab_size=64, num_hidden_layers=4, bos_token_id=0, eos_token_id=1, **sizes))
encoder.requires_grad_(False)
encoder.gradient_checkpointing_enable()
model = get_peft_model(encoder, LoraConfig(r=4, target_modules=["q_proj", "v_proj"])).eval()
fit(model, lambda: model(input_ids=tokens()["input_ids"]).last_hidden_state.square().mean())
