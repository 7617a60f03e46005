from torch import nn

from ...modeling_utils import PreTrainedModel


class FooModel(PreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.linear = nn.Linear(2, 2)

    def forward(self, hidden_states, attention_mask=None):
        hidden_states = self.linear(hidden_states)
        return hidden_states
