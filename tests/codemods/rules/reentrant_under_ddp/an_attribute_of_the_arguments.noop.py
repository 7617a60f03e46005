# CKPT104 unsafe | "use_reentrant": True | what zero3.json (line 6) asks for is not known
# file: train.py
from transformers import Trainer, TrainingArguments

# torchrun --nproc-per-node 8 train.py
arguments = TrainingArguments("out", gradient_checkpointing_kwargs={"use_reentrant": True})
if options.offload:
    arguments.deepspeed = "zero3.json"
Trainer(get_peft_model(model, lora), arguments).train()
