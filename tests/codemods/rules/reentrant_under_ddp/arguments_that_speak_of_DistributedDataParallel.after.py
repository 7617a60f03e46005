# file: train.py
from transformers import Trainer, TrainingArguments

arguments = TrainingArguments(
    "out",
    ddp_find_unused_parameters=False,
    gradient_checkpointing_kwargs={"use_reentrant": False},
)
