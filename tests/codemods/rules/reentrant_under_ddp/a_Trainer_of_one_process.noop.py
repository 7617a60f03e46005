# file: train.py
from transformers import Trainer, TrainingArguments

arguments = TrainingArguments("out", gradient_checkpointing_kwargs={"use_reentrant": True})
Trainer(model, arguments).train()
