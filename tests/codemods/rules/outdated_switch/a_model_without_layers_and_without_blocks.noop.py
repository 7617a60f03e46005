# CKPT011 info | def _set_gradient_checkpointing | gradient_checkpointing_kwargs are ignored
from torch import nn

from ...modeling_utils import PreTrainedModel


class FooPreTrainedModel(PreTrainedModel):
    def _set_gradient_checkpointing(self, module, value=False):
        if isinstance(module, FooModel):
            module.gradient_checkpointing = value


class FooModel(FooPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.head = nn.Linear(4, 4)

    def forward(self, hidden_states):
        return self.head(hidden_states)
