from torch import nn
from torch.utils.checkpoint import checkpoint


def run_layer(layer, hidden_states, aux=None):
    return layer(hidden_states), aux


def forward(saver, layers, hidden_states):
    for layer in layers:
        saver.checkpoint(lambda: layer, hidden_states, step=1)
    return hidden_states
