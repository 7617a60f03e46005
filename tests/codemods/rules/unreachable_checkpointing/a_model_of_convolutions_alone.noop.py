# CKPT009 info | class FooModel
from torch import nn

from ...modeling_utils import PreTrainedModel


class FooConv(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3)

    def forward(self, hidden_states):
        return self.conv(hidden_states)


class FooModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.conv = FooConv(config)

    def forward(self, hidden_states, attention_mask=None):
        hidden_states = self.conv(hidden_states)
        return hidden_states
