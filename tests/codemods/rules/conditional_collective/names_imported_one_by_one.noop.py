# CKPT102 unsafe | all_gather_object(everything, found)
# file: train.py
import torch
import torch.distributed as dist
from torch.distributed import all_gather_object, get_rank


def collect(found):
    everything = [None] * 2
    if get_rank() == 0 and found:
        all_gather_object(everything, found)
    return everything
