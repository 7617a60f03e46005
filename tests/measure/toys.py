"""Small models with healthy and faulty blocks, built on the live release's checkpointing layer."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import transformers
from packaging.version import Version
from torch import Tensor, nn

from ckpt_surgery.measure.record import RunRecord
from ckpt_surgery.measure.results import Mode
from ckpt_surgery.measure.step import run_step
from ckpt_surgery.model_patches.release_names import RELEASES

if TYPE_CHECKING:  # transformers is not read by the type checker
    from torch.nn import Module as CheckpointingLayer
    from torch.nn import Module as Pretrained
else:
    from transformers import PreTrainedModel as Pretrained
    from transformers.modeling_layers import GradientCheckpointingLayer as CheckpointingLayer

BATCH, WIDTH = 3, 4
CACHE = "cache" if Version(transformers.__version__) >= Version(RELEASES["cache"][0]) else "past_key_values"
"""The keyword that the installed release's checkpointing layer clears."""


class Layer(CheckpointingLayer):
    """A correct block: a checkpointing layer that takes its hidden states by position."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.2)

    def forward(self, hidden_states: Tensor) -> Tensor:
        change: Tensor = self.dropout(torch.tanh(self.linear(hidden_states)))
        return hidden_states + change


class PlainLayer(nn.Module):
    """The computation of `SureLayer` in a module that nothing checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.sin(torch.exp(torch.tanh(self.linear(hidden_states))))


class SureLayer(CheckpointingLayer):
    """A healthy block that draws no randomness, and saves much unless it is checkpointed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.sin(torch.exp(torch.tanh(self.linear(hidden_states))))


class CountingLayer(Layer):
    """A layer whose result differs in each run, so that the recompute belongs to another function."""

    runs = 0

    def forward(self, hidden_states: Tensor) -> Tensor:
        self.runs += 1
        return torch.tanh(self.linear(hidden_states) * self.runs)


class FailingLayer(CountingLayer):
    def forward(self, hidden_states: Tensor) -> Tensor:
        if self.runs:
            raise RuntimeError("the cache is\n full")
        return super().forward(hidden_states)


class ForgettingLayer(CountingLayer):
    """A layer that detaches one of its parameters from the second run on."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.ones(WIDTH))

    def forward(self, hidden_states: Tensor) -> Tensor:
        self.runs += 1
        return torch.tanh(self.linear(hidden_states) + (self.shift.detach() if self.runs > 1 else self.shift))


class HoardingLayer(SureLayer):
    """A layer that keeps its results, so that checkpointing frees nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []

    def forward(self, hidden_states: Tensor) -> Tensor:
        results = [torch.tanh(self.linear(hidden_states) + number) for number in range(8)]
        self.kept.extend(results)
        return torch.stack(results).sum(0)


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
    """A checkpointing layer that contains another, and computes more after it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Layer()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, hidden_states: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.inner(hidden_states))
        return normed


class SharingLayer(CheckpointingLayer):
    """A layer that runs a module shared with other blocks before its own."""

    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.shared = shared
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.tanh(self.linear(self.shared(hidden_states)))


class TwoStreamLayer(SureLayer):
    """A layer with a second gradient argument: a tensor, inside a container, or by keyword."""

    def forward(self, hidden_states: Tensor, residual: Any = 0.0) -> Tensor:
        second: Tensor = residual[0] if isinstance(residual, (list, tuple)) else residual
        return torch.tanh(self.linear(hidden_states) + second)


class PairLayer(TwoStreamLayer):
    """A layer that returns a second tensor inside an inner tuple."""

    def forward(self, hidden_states: Tensor, residual: Any = 0.0) -> Any:
        hidden = super().forward(hidden_states, residual)
        return hidden, (torch.sin(hidden),)


class WritingLayer(SureLayer):
    """A layer that reads earlier blocks' results from a shared dictionary, and adds its own."""

    def forward(self, hidden_states: Tensor, shared_states: dict[str, Tensor] | None = None) -> Tensor:
        assert shared_states is not None
        hidden = torch.tanh(self.linear(hidden_states) + shared_states.get("last", torch.zeros(())))
        shared_states["last"] = torch.sin(hidden)
        return hidden


class RoutingLayer(SureLayer):
    """A layer that leaves its scores where the model finds them for an auxiliary loss."""

    scores: Tensor

    def forward(self, hidden_states: Tensor) -> Tensor:
        self.scores = self.linear(hidden_states)
        return torch.tanh(self.scores)


class CachingLayer(SureLayer):
    """A layer that first appends its hidden states to a cache."""

    def forward(self, hidden_states: Tensor, past_key_values: Any = None, cache: Any = None) -> Tensor:
        if (kept := past_key_values if cache is None else cache) is not None:
            entry = hidden_states.detach()[:, None, None, :1].clone()  # one head, one position, one number
            kept.update(entry, entry, 0)
        return super().forward(hidden_states)


class Model(Pretrained):
    """A stack of blocks between two projections; `by_keyword` passes hidden states by name."""

    config_class = transformers.PretrainedConfig
    supports_gradient_checkpointing = True
    main_input_name = "values"

    def __init__(self, *layers: nn.Module, by_keyword: bool = False) -> None:
        config = transformers.PretrainedConfig()
        config.num_hidden_layers = len(layers)
        super().__init__(config)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(layers)
        self.last = nn.Linear(WIDTH, WIDTH)
        self.by_keyword = by_keyword
        self.gradient_checkpointing = False

    def forward(self, values: Tensor) -> Any:
        return self.last(self.run_layers(self.first(values)))

    def run_layers(self, hidden_states: Tensor) -> Tensor:
        for layer in self.layers:
            hidden_states = layer(hidden_states=hidden_states) if self.by_keyword else layer(hidden_states)
        return hidden_states

    @torch.no_grad()
    def generate(self, values: Tensor) -> Tensor:
        assert not self.training
        return torch.randint(100, values.shape)


class TwoStreams(Model):
    """A model that passes every block a second gradient argument as `hand_over` says."""

    hand_over: Callable[[nn.Module, Tensor, Tensor], Any]

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.side = nn.Linear(WIDTH, WIDTH)

    def forward(self, values: Tensor) -> Any:
        hidden_states, residual = self.first(values), self.side(values)
        for layer in self.layers:
            hidden_states = type(self).hand_over(layer, hidden_states, residual)
        return self.last(hidden_states)


class ResidualByKeyword(TwoStreams):
    hand_over = staticmethod(lambda layer, hidden, residual: layer(hidden, residual=residual))


class ResidualInAList(TwoStreams):
    hand_over = staticmethod(lambda layer, hidden, residual: layer(hidden, [residual]))


class PairsInTurn(Model):
    """A model that uses its blocks' results, inner tuples included."""

    def run_layers(self, hidden_states: Tensor) -> Tensor:
        for layer in self.layers:
            hidden_states, (second,) = layer(hidden_states)
            hidden_states = hidden_states + second
        return hidden_states


class SharedDictionary(Model):
    def run_layers(self, hidden_states: Tensor) -> Tensor:
        shared_states: dict[str, Tensor] = {}
        for layer in self.layers:
            hidden_states = layer(hidden_states, shared_states)
        return hidden_states


class RouterLoss(Model):
    """A model that adds a loss of scores that its blocks do not return."""

    def forward(self, values: Tensor) -> Any:
        result = super().forward(values)
        scores: list[Tensor] = [vars(layer).pop("scores") for layer in self.layers]
        return {"loss": result.sum() + torch.stack(scores).square().sum()}


class NoProjection(Model):
    """A model whose first block takes the user's input, which needs no gradient."""

    def forward(self, values: Tensor) -> Any:
        return self.last(self.run_layers(values))


class CallsForward(Model):
    """A model that checkpoints its blocks' `forward`, as T5 did up to 4.52, so that none of their hooks run."""

    def run_layers(self, hidden_states: Tensor) -> Tensor:
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden_states = self.checkpointed(layer.forward, hidden_states)
            else:
                hidden_states = layer(hidden_states)
        return hidden_states

    def checkpointed(self, function: Callable[..., Any], hidden_states: Tensor) -> Tensor:
        result: Tensor = self._gradient_checkpointing_func(function, hidden_states)  # type: ignore[operator]
        return result


class PositionalCache(Model):
    """A model that passes a cache by position, where the checkpointing layer cannot remove it."""

    def forward(self, values: Tensor, past_key_values: Any = None) -> Any:
        hidden_states = self.first(values)
        for layer in self.layers:
            hidden_states = layer(hidden_states, past_key_values)
        return self.last(hidden_states)


class KeywordCache(PositionalCache):
    def forward(self, values: Tensor, past_key_values: Any = None) -> Any:
        hidden_states = self.first(values)
        for layer in self.layers:
            hidden_states = layer(hidden_states, **{CACHE: past_key_values})
        return self.last(hidden_states)


class Slipping(Model):
    """A model that checkpoints without keeping the generator's state for the recompute."""

    def _set_gradient_checkpointing(
        self, enable: bool = True, gradient_checkpointing_func: Any = None, **more: Any
    ) -> None:
        function = gradient_checkpointing_func and partial(gradient_checkpointing_func, preserve_rng_state=False)
        super()._set_gradient_checkpointing(enable, function, **more)  # type: ignore[misc]


def model_of(*kinds: Callable[[], nn.Module], by_keyword: bool = False, whole: Callable[..., Model] = Model) -> Model:
    """Build a `whole` with one block of each kind, in float64 and training mode."""
    torch.manual_seed(1)
    options = {"by_keyword": True} if by_keyword else {}
    model = whole(*(kind() for kind in kinds), **options)
    return model.double().train()


def values() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return {"values": torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64)}


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Record whatever a step could leave changed: generators, attributes, hooks, flags, gradients and values."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            state[f"{path}:{name}"] = list(value.items()) if isinstance(value, dict) else value
        for holder in ("_parameters", "_buffers", "_modules"):
            state[f"{path}:{holder}"] = list(vars(module)[holder])
    for name, parameter in model.named_parameters():
        state[f"{name}.grad"], state[f"{name}.wanted"] = parameter.grad, parameter.requires_grad
    return state | {f"{name}.value": tensor.clone() for name, tensor in model.state_dict().items()}


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """List the names under which two snapshots differ."""
    return [name for name in {**before, **after} if not _same(before.get(name), after.get(name))]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.allclose(one, other, 0, 0, equal_nan=True)
    return type(one) is type(other) and bool(one == other)


def run(model: Model, mode: Mode | None = None, blocks: Mapping[str, nn.Module] | None = None) -> RunRecord:
    return run_step(model, values(), blocks=blocks or dict(model.layers.named_children()), checkpointing=mode)
