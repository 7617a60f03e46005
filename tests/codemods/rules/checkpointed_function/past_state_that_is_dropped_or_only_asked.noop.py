from torch import nn
from torch.utils.checkpoint import checkpoint


def run_layer(layer, hidden_states, aux=None):
    return layer(hidden_states), aux


def forward(layers, hidden_states, past_key_values=None, cache=None):
    def run(layer, states, past):
        return layer(states, cache.get_seq_length())

    past_key_values = None
    for layer in layers:
        hidden_states = checkpoint(run, layer, hidden_states, past_key_values, use_reentrant=False)
    return hidden_states
