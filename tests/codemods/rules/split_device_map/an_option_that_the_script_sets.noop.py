# file: train.py
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
import os
from dataclasses import dataclass


@dataclass
class Options:
    device_map: str = "auto"


options = Options()
options.device_map = {"": int(os.environ["LOCAL_RANK"])}
model = AutoModelForCausalLM.from_pretrained("m", device_map=options.device_map)
Trainer(model, TrainingArguments("out")).train()
