# CKPT102 unsafe | accelerator.wait_for_everyone() | `accelerator.is_main_process`
# file: train.py
from accelerate import Accelerator

accelerator = Accelerator()


def save(model):
    if accelerator.is_main_process:
        accelerator.wait_for_everyone()
        accelerator.unwrap_model(model).save_pretrained("out")
