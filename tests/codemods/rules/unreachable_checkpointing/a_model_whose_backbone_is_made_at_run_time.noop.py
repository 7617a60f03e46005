# CKPT009 unknown | class FooModel
from torch import nn

from ...modeling_utils import PreTrainedModel
from ..auto import AutoBackbone


class FooModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        super().__init__(config)
        self.backbone = AutoBackbone.from_config(config)

    def forward(self, hidden_states, attention_mask=None):
        hidden_states = self.backbone(hidden_states)
        return hidden_states
