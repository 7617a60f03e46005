# file: train.py
from transformers import Trainer, TrainingArguments

# deepspeed --num_gpus 8 train.py
arguments = TrainingArguments("out", gradient_checkpointing_kwargs={"use_reentrant": True})
Trainer(model, arguments).train()
