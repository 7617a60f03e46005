# CKPT104 safe | {"use_reentrant": True} | ddp_find_unused_parameters on line 5
# file: train.py
from transformers import Trainer, TrainingArguments

arguments = TrainingArguments(
    "out",
    ddp_find_unused_parameters=False,
    gradient_checkpointing_kwargs={"use_reentrant": True},
)
