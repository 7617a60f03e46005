# file: train.py
from transformers import Trainer, TrainingArguments

arguments = TrainingArguments(
    "out",
    fsdp="full_shard auto_wrap",
    fsdp_config={"activation_checkpointing": False},
    gradient_checkpointing=True,
)
Trainer(model, arguments).train()
