# CKPT105 info | gradient_checkpointing=True | is not reentrant since transformers 5.0
# file: train.py
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments

model = get_peft_model(model, LoraConfig())
arguments = TrainingArguments(
    "out",
    deepspeed={"zero_optimization": {"stage": 3}},
    gradient_checkpointing=True,
)
Trainer(model, arguments).train()
