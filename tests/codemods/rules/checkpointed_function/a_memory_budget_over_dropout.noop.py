# CKPT012 unsafe | activation_memory_budget = 0.5 | in a file with dropout (`nn.Dropout(0.1`)
# file: train.py
import torch
from torch import nn

torch._functorch.config.activation_memory_budget = 0.5
model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)))
