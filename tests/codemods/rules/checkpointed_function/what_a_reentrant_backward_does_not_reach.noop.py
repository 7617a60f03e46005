# CKPT012 unsafe | x = checkpoint(shifted, x) | shifted captures `rel_pos_bias`: with use_reentrant=True the backward pass stops where two blocks share it
# CKPT012 unsafe | x = checkpoint(biased, x, use_reentrant=True) | biased captures `relative_position_bias`
# CKPT012 unsafe | checkpoint( | captures `encoder_hidden_states`
# CKPT012 unsafe | checkpoint( | inside `[hidden_states, aux]`
# CKPT012 unsafe | checkpoint(partial | captures `aux`: with use_reentrant=True the backward pass stops
# CKPT012 info | checkpoint( | without use_reentrant
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


def run_layer(layer, hidden_states, aux=None):
    return layer(hidden_states), aux


def a_bias_of_positions_that_it_captures(layer, x, rel_pos_bias, relative_position_bias, window_size):
    def shifted(x):
        return layer(x) + rel_pos_bias

    def biased(x):
        return layer(x) + relative_position_bias

    def split(x):
        return layer(x, window_size)

    x = checkpoint(shifted, x)
    x = checkpoint(biased, x, use_reentrant=True)
    x = checkpoint(shifted, x, use_reentrant=False)
    return checkpoint(split, x, use_reentrant=True)


def a_default_that_holds_hidden_states(layers, hidden_states, encoder_hidden_states):
    for layer in layers:
        hidden_states = checkpoint(
            lambda states, layer=layer: layer(states, encoder_hidden_states), hidden_states, use_reentrant=True
        )
    return hidden_states


def run_both(layer, states):
    return layer(states[0]), states[1]


def a_list_of_gradient_tensors(layers, hidden_states, aux):
    for layer in layers:
        hidden_states, aux = checkpoint(run_both, layer, [hidden_states, aux], use_reentrant=True)
    return hidden_states, aux


def a_partial_over_what_the_loop_carries(layers, hidden_states, aux):
    for layer in layers:
        hidden_states, aux = checkpoint(partial(run_layer, layer, aux=aux), hidden_states, use_reentrant=True)
    return hidden_states, aux


def a_function_that_is_given_no_mode(layers, hidden_states):
    for layer in layers:
        hidden_states, _ = checkpoint(run_layer, layer, hidden_states)
    return hidden_states
