# CKPT001 unsafe | class FooLayer | forward_in_segments checkpoints, and reads `layers` of another object
# prelude: plain
from torch import nn
from torch.utils.checkpoint import checkpoint

from ...modeling_utils import PreTrainedModel


def segment(model, start, end):
    def run(hidden_states):
        for layer in model.layers[start:end]:
            hidden_states = layer(hidden_states)
        return hidden_states

    return run


def forward_in_segments(model, hidden_states):
    for start in range(0, len(model.layers), 2):
        hidden_states = checkpoint(segment(model, start, start + 2), hidden_states, use_reentrant=False)
    return hidden_states
