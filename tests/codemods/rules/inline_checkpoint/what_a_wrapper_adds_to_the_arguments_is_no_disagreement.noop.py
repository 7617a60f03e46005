# CKPT002 info | if self.gradient_checkpointing and self.training

import torch
from torch import nn


class FooAttention(nn.Module):
    pass


class FooLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = FooAttention()

    def forward(self, hidden_states, attention_mask=None, output_attentions=False, scale=None):
        return self.self_attn(hidden_states)


class FooEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([FooLayer() for _ in range(2)])
        self.gradient_checkpointing = False

    def forward(self, hidden_states, attention_mask=None, output_attentions=False, scale=None):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:

                def create_custom_forward(module):
                    def custom_forward(*inputs):
                        return module(*inputs, output_attentions, scale=scale)

                    return custom_forward

                hidden_states = torch.utils.checkpoint.checkpoint(
                    create_custom_forward(layer), hidden_states, attention_mask, use_reentrant=False
                )
            else:
                hidden_states = layer(hidden_states, attention_mask, output_attentions, scale)
        return hidden_states
