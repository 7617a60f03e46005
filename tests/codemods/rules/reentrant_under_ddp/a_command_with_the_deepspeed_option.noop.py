# file: train.py
from transformers import Trainer, TrainingArguments

# torchrun train.py --deepspeed configs/zero2.json
arguments = TrainingArguments("out", gradient_checkpointing_kwargs={"use_reentrant": True})
Trainer(model, arguments).train()
# file: configs/zero2.json
{"zero_optimization": {"stage": 2}}
