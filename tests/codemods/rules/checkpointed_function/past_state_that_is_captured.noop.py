# CKPT012 unsafe | checkpoint( | `past_key_values`, past state that the recompute writes again
from torch import nn
from torch.utils.checkpoint import checkpoint


def run_layer(layer, hidden_states, aux=None):
    return layer(hidden_states), aux


def forward(layers, hidden_states, past_key_values=None):
    def run(layer, states):
        return layer(states, past_key_values=past_key_values)

    for layer in layers:
        hidden_states = checkpoint(run, layer, hidden_states, use_reentrant=False)
    return hidden_states
