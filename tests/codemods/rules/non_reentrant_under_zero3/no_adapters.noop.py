# file: train.py
from transformers import Trainer, TrainingArguments

arguments = TrainingArguments(
    "out",
    deepspeed={"zero_optimization": {"stage": 3}},
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False},
)
Trainer(model, arguments).train()
