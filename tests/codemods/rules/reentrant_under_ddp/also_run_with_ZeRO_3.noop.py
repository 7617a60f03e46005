# CKPT104 unsafe | "use_reentrant": True | also runs under DeepSpeed ZeRO-3 (accelerate launch on line 5)
# file: train.py
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments

# torchrun --nproc-per-node 8 train.py
# accelerate launch --use_deepspeed --zero_stage 3 train.py
arguments = TrainingArguments("out", gradient_checkpointing_kwargs={"use_reentrant": True})
Trainer(get_peft_model(model, LoraConfig()), arguments).train()
