import torch
from torch import nn


def compute_layers(states, mask, layers):
    return [layer(state, mask) for layer, state in zip(layers, states)]


class FooModel(nn.Module):
    def forward(self, states, mask=None):
        use_gradient_checkpointing = self.gradient_checkpointing and self.training
        for layers in zip(self.first, self.second):
            if use_gradient_checkpointing:
                states = torch.utils.checkpoint.checkpoint(
                    compute_layers, states, mask, layers=layers, use_reentrant=False
                )
            else:
                states = compute_layers(states, mask, layers=layers)
        return states
