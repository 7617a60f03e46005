from torch import nn
from torch.utils.checkpoint import checkpoint


def run_layer(layer, hidden_states, aux=None):
    return layer(hidden_states), aux


def forward(layers, hidden_states, aux):
    for layer in layers:
        hidden_states = checkpoint(layer, hidden_states, aux, use_reentrant=True)
        hidden_states = checkpoint(layer.forward, hidden_states, aux=aux, use_reentrant=False)
    return hidden_states
