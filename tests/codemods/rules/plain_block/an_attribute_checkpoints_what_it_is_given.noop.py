# prelude: plain

from functools import partial

from torch import nn

from ...modeling_utils import PreTrainedModel


def checkpoint_function(config):
    from torch.utils.checkpoint import checkpoint

    return partial(checkpoint, use_reentrant=False)

class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList([FooLayer(config) for _ in range(config.num_hidden_layers)])
        self._checkpoint_fn = checkpoint_function(config)

    def forward(self, hidden_states, attention_mask=None):
        for layer in self.layers:
            hidden_states = self._checkpoint_fn(layer, hidden_states)
        return hidden_states
