# CKPT103 unsafe | from_pretrained | torchrun on line 3
# file: train.py
"""Fine-tune.

    torchrun --nproc-per-node 8 train.py
"""

from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("m", device_map="auto")
Trainer(model, TrainingArguments("out")).train()
