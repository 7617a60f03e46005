# CKPT105 unsafe | "use_reentrant": False
# file: train.py
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments

# torchrun --nproc-per-node 8 train.py
# accelerate launch --use_deepspeed --zero_stage 3 train.py
arguments = TrainingArguments("out", gradient_checkpointing_kwargs={"use_reentrant": False})
Trainer(get_peft_model(model, LoraConfig()), arguments).train()
