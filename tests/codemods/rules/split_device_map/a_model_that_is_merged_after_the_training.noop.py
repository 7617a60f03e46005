# file: train.py
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
import os

from peft import AutoPeftModelForCausalLM

rank = int(os.environ["LOCAL_RANK"])
trainer = Trainer("m", TrainingArguments("out"))
trainer.train()
model = AutoPeftModelForCausalLM.from_pretrained("out", device_map="auto")
model = model.merge_and_unload()
judge = AutoModelForCausalLM.from_pretrained("judge", device_map="auto").eval()
