"""Small models with healthy and faulty blocks, built on the live release's checkpointing layer.

Needs torch and transformers, 4 or 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
import transformers
from torch import Tensor, nn

from ckpt_surgery.verification.probe import Checkpointing, RunRecord, run_step

if TYPE_CHECKING:  # transformers is not read by the type checker
    from torch.nn import Module as CheckpointingLayer
    from torch.nn import Module as Pretrained
else:
    from transformers import PreTrainedModel as Pretrained
    from transformers.modeling_layers import GradientCheckpointingLayer as CheckpointingLayer

WIDTH = 4


class Layer(CheckpointingLayer):
    """A block as it should be: a checkpointing layer that takes its hidden states by position."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.2)

    def forward(self, hidden_states: Tensor) -> Tensor:
        change: Tensor = self.dropout(torch.tanh(self.linear(hidden_states)))
        return hidden_states + change


class PlainLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.tanh(self.linear(hidden_states))


class CountingLayer(Layer):
    """Gives another result each time it runs, so that the recompute belongs to another function."""

    runs = 0

    def forward(self, hidden_states: Tensor) -> Tensor:
        self.runs += 1
        return torch.tanh(self.linear(hidden_states) * self.runs)


class FailingLayer(CountingLayer):
    def forward(self, hidden_states: Tensor) -> Tensor:
        if self.runs:
            raise RuntimeError("the cache is\n full")
        return super().forward(hidden_states)


class BareLayer(CheckpointingLayer):
    """A block with a parameter and no submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(WIDTH) / 2)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.tanh(hidden_states @ self.weight)


class NormLayer(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, hidden_states: Tensor) -> Tensor:
        normed: Tensor = self.norm(torch.tanh(self.linear(hidden_states)))
        return normed


class Stage(CheckpointingLayer):
    """A checkpointing layer that holds another, and works on after it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Layer()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.tanh(self.linear(self.inner(hidden_states)))


class StageOfLayers(Stage):
    """One that does nothing but call what it holds."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.exp(self.inner(hidden_states))


class SharingLayer(CheckpointingLayer):
    """Runs a module that other blocks hold too before one of its own."""

    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.shared = shared
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.tanh(self.linear(self.shared(hidden_states)))


class Model(Pretrained):
    """A stack of the given blocks behind a projection; `by_keyword` hands them their hidden states by name."""

    config_class = transformers.PretrainedConfig
    supports_gradient_checkpointing = True
    main_input_name = "values"

    def __init__(self, *layers: nn.Module, by_keyword: bool = False) -> None:
        super().__init__(transformers.PretrainedConfig())
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(layers)
        self.by_keyword = by_keyword
        self.gradient_checkpointing = False

    def forward(self, values: Tensor) -> Tensor:
        hidden_states: Tensor = self.first(values)
        for layer in self.layers:
            hidden_states = layer(hidden_states=hidden_states) if self.by_keyword else layer(hidden_states)
        return hidden_states

    @torch.no_grad()
    def generate(self, values: Tensor) -> Tensor:
        assert not self.training
        return torch.randint(100, values.shape)


def model_of(*kinds: Callable[[], nn.Module], by_keyword: bool = False) -> Model:
    torch.manual_seed(1)
    return Model(*(kind() for kind in kinds), by_keyword=by_keyword).double()


def values() -> dict[str, Tensor]:
    return {"values": torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(2), dtype=torch.float64)}


def run(model: Model, mode: Checkpointing | None = None, blocks: Mapping[str, nn.Module] | None = None) -> RunRecord:
    return run_step(model, values(), blocks=blocks or dict(model.layers.named_children()), checkpointing=mode)
