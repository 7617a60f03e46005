# prelude: plain

from torch import nn

from ...modeling_layers import GradientCheckpointingLayer as Recomputed
from ...modeling_utils import PreTrainedModel

class FooLayer(Recomputed): ...
