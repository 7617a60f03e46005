# CKPT012 unsafe | checkpoint( | captures `encoder_hidden_states`
from torch import nn
from torch.utils.checkpoint import checkpoint


def run_layer(layer, hidden_states, aux=None):
    return layer(hidden_states), aux


def forward(layers, hidden_states, encoder_hidden_states):
    for layer in layers:
        hidden_states = checkpoint(
            lambda states, layer=layer: layer(states, encoder_hidden_states), hidden_states, use_reentrant=True
        )
    return hidden_states
