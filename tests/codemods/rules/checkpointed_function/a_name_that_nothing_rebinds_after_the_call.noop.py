from torch import nn
from torch.utils.checkpoint import checkpoint


class FooModel(nn.Module):
    def forward(self, states, aux, fast=False):
        states = self.embed(states)
        width = states.shape[-1]
        if fast:
            return checkpoint(lambda aux: self.first(aux) + states, aux, use_reentrant=False)
        if aux is None:
            aux = checkpoint(lambda other: self.first(other) + states, aux, use_reentrant=False)
        else:
            states = self.second(states)
        mixed = checkpoint(lambda aux: self.first(aux).view(width) + states, aux, use_reentrant=False)
        aux = self.third(aux)
        width = mixed.shape[-1]
        return mixed, aux


def train(model, states, aux):
    aux = checkpoint(lambda aux: model(aux) + states, aux, use_reentrant=False)
    aux.sum().backward()
    states = model(states)
    return states
