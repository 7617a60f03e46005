# file: train.py
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("m")
model.requires_grad_(False)
model.gradient_checkpointing_enable()
for batch in range(3):
    head(model(batch)).backward()
