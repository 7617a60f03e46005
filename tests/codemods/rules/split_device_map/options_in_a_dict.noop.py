# CKPT103 unsafe | **options | sequential
# file: train.py
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from accelerate import Accelerator

accelerator = Accelerator()
options = {"device_map": "sequential", "dtype": "auto"}
model = AutoModelForCausalLM.from_pretrained("m", **options)
model = accelerator.prepare(model)
accelerator.backward(model(1).loss)
