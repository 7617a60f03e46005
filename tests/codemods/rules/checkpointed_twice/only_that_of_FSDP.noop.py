# file: train.py
from transformers import Trainer, TrainingArguments

arguments = TrainingArguments(
    "out",
    fsdp="full_shard auto_wrap",
    fsdp_config={"activation_checkpointing": True, "version": 2},
    gradient_checkpointing=False,
)
Trainer(model, arguments).train()
