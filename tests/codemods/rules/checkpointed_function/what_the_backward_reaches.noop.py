from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


def run_layer(layer, hidden_states, aux=None):
    return layer(hidden_states), aux


def run_both(layer, states):
    return layer(states[0]), states[1]


def a_list_without_reentrance(layers, hidden_states, aux):
    for layer in layers:
        hidden_states, aux = checkpoint(run_both, layer, [hidden_states, aux], use_reentrant=False)
    return hidden_states, aux


def a_partial_without_reentrance(layers, hidden_states, aux):
    for layer in layers:
        hidden_states, aux = checkpoint(partial(run_layer, layer, aux=aux), hidden_states, use_reentrant=False)
    return hidden_states, aux


def keywords_without_reentrance(layers, hidden_states, aux):
    for layer in layers:
        hidden_states, aux = checkpoint(
            run_layer, layer, hidden_states, aux=aux, use_reentrant=False, preserve_rng_state=False
        )
    return hidden_states, aux


def arguments_by_position(layers, hidden_states, aux):
    for layer in layers:
        hidden_states, aux = checkpoint(run_layer, layer, hidden_states, aux, use_reentrant=True)
    return hidden_states, aux


def modules_are_left_to_CKPT002(layers, hidden_states, aux):
    for layer in layers:
        hidden_states = checkpoint(layer, hidden_states, aux, use_reentrant=True)
        hidden_states = checkpoint(layer.forward, hidden_states, aux=aux, use_reentrant=False)
    return hidden_states
