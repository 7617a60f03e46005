# CKPT103 unsafe | AutoModelForCausalLM.from_pretrained | LOCAL_RANK on line 4
# file: train.py
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
import os

local_rank = int(os.environ["LOCAL_RANK"])
model = AutoModelForCausalLM.from_pretrained("m", device_map="auto")
trainer = Trainer(model, TrainingArguments("out"))
trainer.train()
