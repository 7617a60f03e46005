# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
