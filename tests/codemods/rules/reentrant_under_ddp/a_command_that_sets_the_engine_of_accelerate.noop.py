# file: train.py
from transformers import HfArgumentParser, Trainer, TrainingArguments

# ACCELERATE_USE_FSDP=1 torchrun --nproc-per-node 4 train.py --config llama.yaml
arguments = HfArgumentParser(TrainingArguments).parse()
arguments.gradient_checkpointing_kwargs = {"use_reentrant": True}
Trainer(model, arguments).train()
