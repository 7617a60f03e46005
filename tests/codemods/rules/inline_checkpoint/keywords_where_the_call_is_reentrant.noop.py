# CKPT002 unsafe | if self.checkpoint_layers | made(layer) gets `mode` by keyword, which it does not take
from torch import nn
from torch.utils.checkpoint import checkpoint


class Layer(nn.Module):
    def forward(self, states, past=None, mode=None):
        return states


class Encoder(nn.Module):
    def __init__(self):
        self.layers = nn.ModuleList([Layer() for _ in range(3)])

    def forward(self, states, mode=None):
        for layer in self.layers:
            if self.checkpoint_layers:

                def made(module):
                    def run(*inputs):
                        return module(*inputs, None)

                    return run

                states = checkpoint(made(layer), states, mode=mode)
            else:
                states = layer(states, None, mode=mode)
        return states
