from torch import nn
from torch.utils.checkpoint import checkpoint


def run_layer(layer, hidden_states, aux=None):
    return layer(hidden_states), aux


def forward(layers, hidden_states, mask):
    for index, layer in enumerate(layers):
        hidden_states = checkpoint(
            lambda states, layer=layer, index=index: layer(states, mask, index), hidden_states, use_reentrant=True
        )
    return hidden_states
