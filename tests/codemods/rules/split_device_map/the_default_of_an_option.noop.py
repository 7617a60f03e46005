# CKPT103 info | device_map=options.device_map | the option's default
# file: train.py
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
import os
from dataclasses import dataclass

rank = os.environ.get("LOCAL_RANK")


@dataclass
class Options:
    device_map: str = "auto"


options = Options()
model = AutoModelForCausalLM.from_pretrained("m", device_map=options.device_map)
Trainer(model, TrainingArguments("out")).train()
