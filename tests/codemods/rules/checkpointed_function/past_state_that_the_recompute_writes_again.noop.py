# CKPT012 unsafe | checkpoint( | `past_key_values`, past state that the recompute writes again
# CKPT012 unknown | checkpoint( | `cache`: if that is past state
# CKPT012 unsafe | checkpoint( | `past_key_values`, past state that the recompute writes again
from torch import nn
from torch.utils.checkpoint import checkpoint


def run_layer(layer, hidden_states, aux=None):
    return layer(hidden_states), aux


def past_state_that_is_captured(layers, hidden_states, past_key_values=None, cache=None):
    def run(layer, states):
        return layer(states, past_key_values=past_key_values, cache=cache)

    for layer in layers:
        hidden_states = checkpoint(run, layer, hidden_states, use_reentrant=False)
    return hidden_states


def past_state_that_is_handed_over(layers, hidden_states, past_key_values=None):
    for layer in layers:
        hidden_states, _ = checkpoint(run_layer, layer, hidden_states, past_key_values, use_reentrant=False)
    return hidden_states


def past_state_that_is_dropped_or_only_asked(layers, hidden_states, past_key_values=None, cache=None):
    def run(layer, states, past):
        return layer(states, cache.get_seq_length())

    past_key_values = None
    for layer in layers:
        hidden_states = checkpoint(run, layer, hidden_states, past_key_values, use_reentrant=False)
    return hidden_states
