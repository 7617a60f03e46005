# CKPT012 unsafe | config.activation_memory_budget = BUDGET | activation_memory_budget=0.5 in a file with dropout
# file: train.py
import torch
from torch import nn
from torch._functorch import config

BUDGET = 0.5
config.activation_memory_budget = BUDGET
model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)))
