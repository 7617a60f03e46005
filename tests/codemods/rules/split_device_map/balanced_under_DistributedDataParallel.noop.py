# CKPT103 unsafe | device_map=placement | local_device_map()
# file: train.py
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
import torch
from torch.nn.parallel import DistributedDataParallel


def main(loader):
    torch.distributed.init_process_group("nccl")
    placement = "balanced"
    model = AutoModelForCausalLM.from_pretrained("m", device_map=placement)
    model = DistributedDataParallel(model)
    for batch in loader:
        model(**batch).loss.backward()
