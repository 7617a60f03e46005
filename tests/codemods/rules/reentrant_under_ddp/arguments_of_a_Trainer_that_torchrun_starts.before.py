# CKPT104 safe | {"use_reentrant": True} | torchrun on line 3
# file: train.py
from transformers import Trainer, TrainingArguments

# torchrun --nproc-per-node 2 train.py
arguments = TrainingArguments("out", gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": True})
Trainer(model, arguments).train()
