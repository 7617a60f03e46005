# CKPT103 unsafe | model = AutoModelForCausalLM.from_pretrained(
# file: train.py
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
import os

rank = int(os.environ["LOCAL_RANK"])
model = AutoModelForCausalLM.from_pretrained(
    "m",
    device_map="auto",
)  # ckpt: ignore[CKPT103] not on the first line of the statement
other = AutoModelForCausalLM.from_pretrained("m", device_map="auto")  # ckpt: ignore[CKPT103] one node has one GPU
Trainer(model, TrainingArguments("out")).train()
