# file: train.py
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
import os

placement = "auto"
world_size = int(os.environ.get("WORLD_SIZE", 1))
ddp = world_size != 1
if ddp:
    placement = {"": int(os.environ["LOCAL_RANK"])}
model = AutoModelForCausalLM.from_pretrained("m", device_map=placement)
if world_size == 1:
    other = AutoModelForCausalLM.from_pretrained("m", device_map="auto")
chosen = AutoModelForCausalLM.from_pretrained("m", device_map=None if ddp else "auto")
Trainer(model, TrainingArguments("out")).train()
