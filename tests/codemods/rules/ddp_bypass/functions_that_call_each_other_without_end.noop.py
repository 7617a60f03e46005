# CKPT101 unknown | import torch | too much to follow
# file: train.py
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def f0(model):
    return f1(model) + f1(model) + f1(model) + f2(model) + f2(model) + f2(model) + f3(model) + f3(model) + f3(model) + f4(model) + f4(model) + f4(model) + f5(model) + f5(model) + f5(model) + f6(model) + f6(model) + f6(model) + f7(model) + f7(model) + f7(model) + f8(model) + f8(model) + f8(model)

def f1(model):
    return f0(model) + f0(model) + f0(model) + f2(model) + f2(model) + f2(model) + f3(model) + f3(model) + f3(model) + f4(model) + f4(model) + f4(model) + f5(model) + f5(model) + f5(model) + f6(model) + f6(model) + f6(model) + f7(model) + f7(model) + f7(model) + f8(model) + f8(model) + f8(model)

def f2(model):
    return f0(model) + f0(model) + f0(model) + f1(model) + f1(model) + f1(model) + f3(model) + f3(model) + f3(model) + f4(model) + f4(model) + f4(model) + f5(model) + f5(model) + f5(model) + f6(model) + f6(model) + f6(model) + f7(model) + f7(model) + f7(model) + f8(model) + f8(model) + f8(model)

def f3(model):
    return f0(model) + f0(model) + f0(model) + f1(model) + f1(model) + f1(model) + f2(model) + f2(model) + f2(model) + f4(model) + f4(model) + f4(model) + f5(model) + f5(model) + f5(model) + f6(model) + f6(model) + f6(model) + f7(model) + f7(model) + f7(model) + f8(model) + f8(model) + f8(model)

def f4(model):
    return f0(model) + f0(model) + f0(model) + f1(model) + f1(model) + f1(model) + f2(model) + f2(model) + f2(model) + f3(model) + f3(model) + f3(model) + f5(model) + f5(model) + f5(model) + f6(model) + f6(model) + f6(model) + f7(model) + f7(model) + f7(model) + f8(model) + f8(model) + f8(model)

def f5(model):
    return f0(model) + f0(model) + f0(model) + f1(model) + f1(model) + f1(model) + f2(model) + f2(model) + f2(model) + f3(model) + f3(model) + f3(model) + f4(model) + f4(model) + f4(model) + f6(model) + f6(model) + f6(model) + f7(model) + f7(model) + f7(model) + f8(model) + f8(model) + f8(model)

def f6(model):
    return f0(model) + f0(model) + f0(model) + f1(model) + f1(model) + f1(model) + f2(model) + f2(model) + f2(model) + f3(model) + f3(model) + f3(model) + f4(model) + f4(model) + f4(model) + f5(model) + f5(model) + f5(model) + f7(model) + f7(model) + f7(model) + f8(model) + f8(model) + f8(model)

def f7(model):
    return f0(model) + f0(model) + f0(model) + f1(model) + f1(model) + f1(model) + f2(model) + f2(model) + f2(model) + f3(model) + f3(model) + f3(model) + f4(model) + f4(model) + f4(model) + f5(model) + f5(model) + f5(model) + f6(model) + f6(model) + f6(model) + f8(model) + f8(model) + f8(model)

def f8(model):
    return f0(model) + f0(model) + f0(model) + f1(model) + f1(model) + f1(model) + f2(model) + f2(model) + f2(model) + f3(model) + f3(model) + f3(model) + f4(model) + f4(model) + f4(model) + f5(model) + f5(model) + f5(model) + f6(model) + f6(model) + f6(model) + f7(model) + f7(model) + f7(model)


def train(model):
    ddp = DDP(model)
    f0(ddp).backward()
