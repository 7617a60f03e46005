# CKPT002 info | if self.gradient_checkpointing and self.training | by keyword
# CKPT002 unsafe | if self.config.gradient_checkpointing and self.training | by keyword
import torch
from torch import nn
from transformers import PreTrainedModel


class FooLayer(nn.Module):
    def forward(self, x, mode=None):
        return x


def custom(layer):
    def run(*inputs):
        return layer(*inputs)

    return run


class FooEncoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.layer = nn.ModuleList([FooLayer() for _ in range(2)])
        self.gradient_checkpointing = False

    def forward(self, x, mode=None):
        for layer in self.layer:
            if self.gradient_checkpointing and self.training:
                x = torch.utils.checkpoint.checkpoint(custom(layer), x, mode=mode)
            else:
                x = layer(x, mode=mode)
        for layer in self.layer:
            if self.config.gradient_checkpointing and self.training:
                x = torch.utils.checkpoint.checkpoint(custom(layer), x, mode=mode)
            else:
                x = layer(x, mode=mode)
        return x


class FooModel(PreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.encoder = FooEncoder(config)
