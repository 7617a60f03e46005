# CKPT012 info | checkpoint( | without use_reentrant
from torch import nn
from torch.utils.checkpoint import checkpoint


def run_layer(layer, hidden_states, aux=None):
    return layer(hidden_states), aux


def forward(layers, hidden_states):
    for layer in layers:
        hidden_states, _ = checkpoint(run_layer, layer, hidden_states)
    return hidden_states
