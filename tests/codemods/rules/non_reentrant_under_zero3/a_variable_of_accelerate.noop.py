# CKPT105 unsafe | "use_reentrant": False | DeepSpeed ZeRO-3 (ACCELERATE_USE_DEEPSPEED on line 5)
# file: train.py
import os
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments

os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
os.environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] = "3"
# accelerate launch train.py
arguments = TrainingArguments("out", gradient_checkpointing_kwargs={"use_reentrant": False})
Trainer(get_peft_model(model, LoraConfig()), arguments).train()
