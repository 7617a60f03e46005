# CKPT002 info | if self.checkpoint_layers
from torch import nn
from torch.utils.checkpoint import checkpoint


class Layer(nn.Module):
    def forward(self, states, mode=None):
        return states


class Encoder(nn.Module):
    def __init__(self):
        self.layers = nn.ModuleList([Layer() for _ in range(3)])

    def forward(self, states, mode=None):
        for layer in self.layers:
            if self.checkpoint_layers:
                states = checkpoint(layer, states, mode=mode, use_reentrant=False, preserve_rng_state=True)
            else:
                states = layer(states, mode=mode)
        return states
