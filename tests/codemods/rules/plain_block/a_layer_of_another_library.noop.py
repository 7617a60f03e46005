# prelude: gcl

from torch import nn

from ...modeling_utils import PreTrainedModel
from ..layers import GradientCheckpointingLayer as Layer

class FooLayer(Layer): ...
# file: models/layers.py
from torch import nn


class GradientCheckpointingLayer(nn.Module):
    def __call__(self, *args):
        if self.gradient_checkpointing and self.training:
            return self._gradient_checkpointing_func(super().__call__, *args)
        return super().__call__(*args)
