# file: train.py
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments

model = get_peft_model(model, LoraConfig())
arguments = TrainingArguments(
    "out",
    deepspeed=options.deepspeed,
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False},
)
Trainer(model, arguments).train()
