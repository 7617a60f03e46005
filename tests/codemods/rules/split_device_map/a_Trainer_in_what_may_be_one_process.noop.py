# CKPT103 info | from_pretrained | is right for one process
# file: train.py
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("m", device_map="auto", load_in_4bit=True)
trainer = Trainer(model, TrainingArguments("out"))
trainer.train()
