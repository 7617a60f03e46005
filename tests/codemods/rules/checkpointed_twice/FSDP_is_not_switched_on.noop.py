# file: train.py
from transformers import Trainer, TrainingArguments

arguments = TrainingArguments(
    "out",
    fsdp="",
    fsdp_config={"activation_checkpointing": True, "version": 2},
    gradient_checkpointing=True,
)
Trainer(model, arguments).train()
