# prelude: plain

from torch import nn

from ...modeling_utils import PreTrainedModel
from .recompute import run_block

class FooModel:
    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            hidden_states = run_block(layer, self.recompute, hidden_states)
        return hidden_states
# file: models/foo/recompute.py
from torch.utils.checkpoint import checkpoint


def run_block(block, recompute, *args):
    if recompute:
        return checkpoint(lambda *given: block(*given), *args, use_reentrant=False)
    return block(*args)
