# trains: 1/2 | 1/2
# prelude: trained
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential
from transformers import PretrainedConfig, PreTrainedModel


class FooModel:
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.Sequential(*[FooLayer() for _ in range(3)])
        self.gradient_checkpointing = False

    def forward(self, hidden_states):
        if self.gradient_checkpointing and self.training:
            return checkpoint_sequential(self.layers, 3, hidden_states, use_reentrant=False)
        return self.layers(hidden_states)
