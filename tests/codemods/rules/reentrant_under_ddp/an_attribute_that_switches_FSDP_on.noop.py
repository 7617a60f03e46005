# file: train.py
from transformers import Trainer, TrainingArguments

# torchrun --nproc-per-node 8 train.py
args = TrainingArguments("out", gradient_checkpointing_kwargs={"use_reentrant": True})
args.fsdp = "full_shard"
Trainer(model, args).train()
