# file: train.py
from transformers import AutoModelForCausalLM, Trainer

model = AutoModelForCausalLM.from_pretrained("m")
model.gradient_checkpointing_enable()
model(1).loss.backward()
Trainer(model).train()
