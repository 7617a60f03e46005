# CKPT012 unsafe | checkpointed(partial | captures `hidden_states`
from functools import partial

from torch.utils.checkpoint import checkpoint


def checkpointed(function, *args):
    return checkpoint(function, *args, use_reentrant=True)


def run_layer(layer, states, hidden_states):
    return layer(states, hidden_states)


def forward(layers, states, hidden_states):
    for layer in layers:
        states = checkpointed(run_layer, layer, states, hidden_states)
        states = checkpointed(partial(run_layer, layer, hidden_states=hidden_states), states)
    return states
