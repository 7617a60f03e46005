# CKPT012 unsafe | checkpoint(run | looks up `index` and `scale`
from torch import nn
from torch.utils.checkpoint import checkpoint


def run_layer(layer, hidden_states, aux=None):
    return layer(hidden_states), aux


def forward(layers, scales, hidden_states):
    def run(states):
        return layers[index](states) * scale

    for index in range(len(layers)):
        scale = scales[index]
        hidden_states = checkpoint(run, hidden_states, use_reentrant=False)
    return hidden_states
