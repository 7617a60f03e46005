# file: train.py
import torch
import torch.distributed as dist
