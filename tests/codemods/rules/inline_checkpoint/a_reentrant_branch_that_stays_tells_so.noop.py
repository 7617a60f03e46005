# CKPT002 info | if self.checkpoint_layers | called without use_reentrant, which means True up to torch 2.13: behind frozen layers
# CKPT002 info | if self.checkpoint_tail | called with use_reentrant=True: behind frozen layers
from torch import nn
from torch.utils import checkpoint


class Layer(nn.Module):
    def forward(self, states):
        return states


class Encoder(nn.Module):
    def __init__(self):
        self.layers = nn.ModuleList([Layer() for _ in range(3)])
        self.tail = Layer()

    def forward(self, states):
        for layer in self.layers:
            if self.checkpoint_layers:
                states = checkpoint.checkpoint(layer, states)
            else:
                states = layer(states)
        if self.checkpoint_tail:
            states = checkpoint.checkpoint(self.tail, states, use_reentrant=True)
        else:
            states = self.tail(states)
        return states
