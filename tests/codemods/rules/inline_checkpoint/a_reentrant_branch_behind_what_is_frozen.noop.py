# CKPT002 unsafe | x = checkpoint(layer, x) | behind what Model.freeze freezes no input needs a gradient
# CKPT002 unsafe | states = checkpoint(block, states, use_reentrant=True) | behind what Tower.lock freezes
from torch import nn
from torch.utils.checkpoint import checkpoint


class Layer(nn.Module):
    def forward(self, states):
        return states


class Model(nn.Module):
    def __init__(self, stages):
        self.embed = nn.Embedding(8, 8)
        self.drop = nn.Dropout(0.1)
        self.positions = nn.Parameter(make())
        self.layers = nn.ModuleList([Layer() for _ in range(3)])
        self.head = nn.Linear(8, 2)
        if stages:
            self.freeze()

    def freeze(self):
        for parameter in self.embed.parameters():
            parameter.requires_grad = False
        for layer in self.layers[:1]:
            for parameter in layer.parameters():
                parameter.requires_grad = False

    def forward(self, ids):
        x = self.embed(ids)
        if self.has_positions:
            x = x + self.positions
        x = self.drop(x)
        for layer in self.layers:
            x = checkpoint(layer, x)
        return self.head(x)


class Blocks(nn.Module):
    def __init__(self):
        self.blocks = nn.ModuleList([Layer() for _ in range(3)])

    def forward(self, states):
        for block in self.blocks:
            states = checkpoint(block, states, use_reentrant=True)
        return states


class Tower(nn.Module):
    def __init__(self):
        self.stem = nn.Conv2d(3, 8, 2)
        self.trunk = Blocks()

    def lock(self, open_blocks=0):
        for parameter in self.parameters():
            parameter.requires_grad = False
        if open_blocks:
            self.trunk.blocks[-open_blocks:].requires_grad_(True)

    def forward(self, pixels):
        return self.trunk(self.stem(pixels))
