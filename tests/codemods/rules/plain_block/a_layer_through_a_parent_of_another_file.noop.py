# prelude: plain

from torch import nn

from ...modeling_utils import PreTrainedModel
from transformers.models.bar.modeling_bar import BarLayer

class FooLayer(BarLayer): ...
# file: models/bar/modeling_bar.py
from torch import nn

from ...modeling_layers import GradientCheckpointingLayer


class FooAttention(nn.Module):
    pass


class BarLayer(GradientCheckpointingLayer):
    def __init__(self, config):
        super().__init__()
        self.self_attn = FooAttention()

    def forward(self, hidden_states, attention_mask=None):
        return hidden_states
