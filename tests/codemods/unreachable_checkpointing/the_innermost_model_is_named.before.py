# CKPT009 unsafe | class FooModel
from torch import nn

from ...modeling_utils import PreTrainedModel


class FooAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.out = nn.Linear(3, 3)

    def forward(self, hidden_states):
        return self.out(hidden_states)


class FooModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.attention = FooAttention(config)

    def forward(self, hidden_states, attention_mask=None):
        hidden_states = self.attention(hidden_states)
        return hidden_states


class FooForPrediction(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.model = FooModel(config)

    def forward(self, hidden_states, attention_mask=None):
        hidden_states = self.model(hidden_states)
        return hidden_states
