# file: train.py
from transformers import LlamaConfig, LlamaForCausalLM

model = LlamaForCausalLM(LlamaConfig())
model.gradient_checkpointing_enable()
for batch in range(3):
    model(batch).loss.backward()
model.eval()
