# file: train.py
from transformers import Trainer, TrainingArguments

# torchrun --nproc-per-node 8 train.py
arguments = TrainingArguments("out", deepspeed="zero2.json", gradient_checkpointing_kwargs={"use_reentrant": True})
Trainer(model, arguments).train()
# file: zero2.json
{"zero_optimization": {"stage": 2}}
