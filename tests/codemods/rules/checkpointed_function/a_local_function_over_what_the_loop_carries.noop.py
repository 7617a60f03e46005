# CKPT012 unsafe | checkpoint(run | looks up `aux`
from torch import nn
from torch.utils.checkpoint import checkpoint


def run_layer(layer, hidden_states, aux=None):
    return layer(hidden_states), aux


def forward(layers, hidden_states, aux):
    for layer in layers:
        def run(states, layer=layer):
            return run_layer(layer, states, aux)

        hidden_states, aux = checkpoint(run, hidden_states, use_reentrant=True)
    return hidden_states, aux
