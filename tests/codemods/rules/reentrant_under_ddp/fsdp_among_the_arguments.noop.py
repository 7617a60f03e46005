# file: train.py
from transformers import Trainer, TrainingArguments

# torchrun --nproc-per-node 8 train.py
arguments = TrainingArguments("out", fsdp="full_shard", gradient_checkpointing_kwargs={"use_reentrant": True})
Trainer(model, arguments).train()
