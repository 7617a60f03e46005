# CKPT002 info | x = checkpoint(layer, x) | behind frozen layers no input needs a gradient
from torch import nn
from torch.utils.checkpoint import checkpoint


class Layer(nn.Module):
    def forward(self, states):
        return states


class Something(nn.Module):
    def __init__(self):
        self.embed = nn.Embedding(8, 8)
        self.project = nn.Linear(8, 8)
        self.layers = nn.ModuleList([Layer() for _ in range(3)])
        self.head = nn.Linear(8, 2)


class TrainedBetween(Something):
    def freeze(self):
        self.embed.requires_grad_(False)

    def forward(self, ids):
        x = self.project(self.embed(ids))
        for layer in self.layers:
            x = checkpoint(layer, x)
        return self.head(x)


class TrainedBefore(Something):
    def freeze(self):
        self.embed.requires_grad_(False)

    def forward(self, ids, pixels):
        x = self.project(pixels) + self.embed(ids)
        for layer in self.layers:
            x = checkpoint(layer, x)
        return self.head(x)


class AllFrozen(Something):
    def freeze(self):
        self.embed.requires_grad_(False)
        for layer in self.layers:
            for parameter in layer.parameters():
                parameter.requires_grad = False

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = checkpoint(layer, x)
        return self.head(x)


class HeadAlone(Something):
    def probe(self):
        self.requires_grad_(False)
        self.head.requires_grad_(True)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = checkpoint(layer, x)
        return self.head(x)


class Guarded(Something):
    def freeze(self):
        self.embed.requires_grad_(False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            if self.use_checkpoint and x.requires_grad:
                x = checkpoint(layer, x)
            else:
                x = layer(x)
        return self.head(x)


class NotReentrant(Something):
    def freeze(self):
        self.embed.requires_grad_(False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(x)
