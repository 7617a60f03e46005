# CKPT012 unsafe | states = ckpt.checkpoint(lambda | looks up `layer`, which
import torch


def train(layers, loader):
    import torch.utils.checkpoint as ckpt

    for batch in loader:
        states = batch.inputs
        for layer in layers:
            states = ckpt.checkpoint(lambda states: layer(states, batch.mask), states, use_reentrant=False)
        torch.autograd.backward(states.sum())
