# CKPT103 unsafe | **options
# file: train.py
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from accelerate import Accelerator

accelerator = Accelerator()


def main():
    options = dict(dtype="auto")
    options["device_map"] = "auto"
    model = accelerator.prepare(AutoModelForCausalLM.from_pretrained("m", **options))
    accelerator.backward(model(1).loss)
