# prelude: plain

from torch import nn
from torch.utils.checkpoint import checkpoint

from ...modeling_utils import PreTrainedModel


def run_block(block, hidden_states):
    return checkpoint(block, hidden_states, use_reentrant=False)

class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            hidden_states = run_block(layer, hidden_states)
        return hidden_states
