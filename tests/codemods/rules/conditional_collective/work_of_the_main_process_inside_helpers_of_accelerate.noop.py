# file: train.py
from accelerate import Accelerator

accelerator = Accelerator()


def prepare(data):
    with accelerator.main_process_first():
        data = data.map(clean)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        print(len(data))
    return accelerator.gather(data)
