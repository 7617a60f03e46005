# CKPT012 info | wrap(layer, preserve_rng_state=False) | is right only where nothing draws random numbers
# file: training/finetune.py
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper as wrap


def parallelize(model, keep=False):
    model.layers = [wrap(layer, preserve_rng_state=False) for layer in model.layers]
    model.dropout = nn.Dropout(0.0)
    return model
