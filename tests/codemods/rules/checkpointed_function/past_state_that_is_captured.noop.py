# CKPT012 unsafe | checkpoint( | `past_key_values`, past state that the recompute writes again
# CKPT012 unknown | checkpoint( | `cache`: if that is past state
from torch import nn
from torch.utils.checkpoint import checkpoint


def run_layer(layer, hidden_states, aux=None):
    return layer(hidden_states), aux


def forward(layers, hidden_states, past_key_values=None, cache=None):
    def run(layer, states):
        return layer(states, past_key_values=past_key_values, cache=cache)

    for layer in layers:
        hidden_states = checkpoint(run, layer, hidden_states, use_reentrant=False)
    return hidden_states
