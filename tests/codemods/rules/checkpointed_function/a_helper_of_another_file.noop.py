# CKPT012 unsafe | states = recomputed(True, lambda states: layer(states), states) | looks up `layer`
# CKPT012 unsafe | states = recomputed(True, states, function=lambda | looks up `layer`
# CKPT012 unsafe | lambda states: self.parts[at](states), states | looks up `at`
# file: models/foo/modeling_foo.py
from functools import partial

from torch import nn

from ..recomputing import Recomputing, recomputed, run_now


class FooModel(Recomputing):
    def forward(self, states):
        for at, layer in enumerate(self.layers):
            states = recomputed(True, lambda states: layer(states), states)
            states = recomputed(True, states, function=lambda states: layer(states))
            states = self.recompute(lambda states: self.parts[at](states), states)
            states = recomputed(True, lambda states, layer=layer: layer(states), states)
            states = recomputed(True, partial(layer, at=at), states)
            states = recomputed(lambda: at > 2, layer, states)
            states = run_now(lambda states: layer(states), states)
            self.saver.save_checkpoint(lambda: layer, at)
            states = self.run_checkpointed(lambda states: layer(states), states)
        return states
# file: models/recomputing.py
import torch
from torch import nn


def _wrapped(module):
    def custom_forward(*inputs):
        return module(*inputs)

    return custom_forward


def recomputed(wanted, function, *args):
    if not wanted:
        return function(*args)
    return torch.utils.checkpoint.checkpoint(_wrapped(function), *args, use_reentrant=False)


def run_now(function, *args):
    return function(*args)


class Recomputing(nn.Module):
    def recompute(self, function, *args):
        return torch.utils.checkpoint.checkpoint(lambda *given: function(*given), *args, use_reentrant=False)

    def run_checkpointed(self, function, *args):
        return function(*args)
