# file: training/finetune.py
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper as wrap


def checkpoint(function, *args, preserve_rng_state=False):
    return function(*args)


def parallelize(model, keep):
    model.layers = [wrap(layer, preserve_rng_state=True) for layer in model.layers]
    model.blocks = [wrap(layer, preserve_rng_state=keep) for layer in model.blocks]
    model.dropout = nn.Dropout(0.1)
    return model
