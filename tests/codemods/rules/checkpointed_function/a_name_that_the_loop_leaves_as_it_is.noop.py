from torch import nn
from torch.utils.checkpoint import checkpoint


def run_layer(layer, hidden_states, aux=None):
    return layer(hidden_states), aux


def forward(layers, hidden_states):
    mask = make_mask(hidden_states)

    def run(layer, states):
        width = states.shape[-1]
        return layer(states, mask, width)

    for layer in layers:
        hidden_states = checkpoint(run, layer, hidden_states, use_reentrant=True)
    return hidden_states
