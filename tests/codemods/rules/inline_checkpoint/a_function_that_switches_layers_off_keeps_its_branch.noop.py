# CKPT002 info | if on | run switches the checkpointing of what it runs by itself

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


class FooLayer(GradientCheckpointingLayer):
    def forward(self, hidden_states):
        return self.self_attn(hidden_states)


class FooStack(nn.Module):
    def __init__(self):
        self.layers = nn.ModuleList([FooLayer() for _ in range(2)])
        self.gradient_checkpointing = False


class FooModel(PreTrainedModel):
    supports_gradient_checkpointing = True

    def __init__(self, config):
        self.stack = FooStack()

    def forward(self, hidden_states):
        stack = self.stack
        on = stack.gradient_checkpointing and torch.is_grad_enabled()

        def run(hidden_states, layer):
            before, layer.gradient_checkpointing = layer.gradient_checkpointing, False
            hidden_states = layer(hidden_states)
            layer.gradient_checkpointing = before
            return hidden_states

        for layer in stack.layers:
            if on:
                hidden_states = checkpoint(run, hidden_states, layer, use_reentrant=False)
            else:
                hidden_states = run(hidden_states, layer)
        return hidden_states
