# CKPT012 unsafe | checkpoint(lambda | looks up `layer`, which the loop rebinds, and the recompute finds the last value: the gradients are wrong, or the step stops; pass a tensor as an argument, and bind all else as a default: `layer=layer`
from torch import nn
from torch.utils.checkpoint import checkpoint


def run_layer(layer, hidden_states, aux=None):
    return layer(hidden_states), aux


def forward(layers, hidden_states):
    for layer in layers:
        hidden_states = checkpoint(lambda states: layer(states), hidden_states, use_reentrant=False)
    return hidden_states
