from torch import nn
from torch.utils.checkpoint import checkpoint


def run_layer(layer, hidden_states, aux=None):
    return layer(hidden_states), aux


def run_both(layer, states):
    return layer(states[0]), states[1]


def forward(layers, hidden_states, aux):
    for layer in layers:
        hidden_states, aux = checkpoint(run_both, layer, [hidden_states, aux], use_reentrant=False)
    return hidden_states, aux
