# file: train.py
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
import os

rank = int(os.environ["LOCAL_RANK"])
model = AutoModelForCausalLM.from_pretrained("m", device_map="auto")
print(model.generate())
