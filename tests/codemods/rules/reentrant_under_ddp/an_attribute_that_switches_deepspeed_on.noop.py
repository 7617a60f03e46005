# file: train.py
from transformers import Trainer, TrainingArguments

# torchrun --nproc-per-node 8 train.py
options = TrainingArguments("out", gradient_checkpointing_kwargs={"use_reentrant": True})
options.deepspeed = {"zero_optimization": {"stage": 3}}
Trainer(model, options).train()
