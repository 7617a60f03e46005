# CKPT012 unsafe | checkpoint(partial | captures `aux`: with use_reentrant=True the backward pass stops
from torch import nn
from torch.utils.checkpoint import checkpoint


def run_layer(layer, hidden_states, aux=None):
    return layer(hidden_states), aux


def forward(layers, hidden_states, aux):
    for layer in layers:
        hidden_states, aux = checkpoint(partial(run_layer, layer, aux=aux), hidden_states, use_reentrant=True)
    return hidden_states, aux
