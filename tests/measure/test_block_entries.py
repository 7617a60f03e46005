"""Entries into a block are counted once each, in forward and backward, in every way of recomputing."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ckpt_surgery.measure.block_entries import ENDLESS, EndlessBackward, Entries, EntryCounter
from ckpt_surgery.measure.results import Mode
from ckpt_surgery.measure.switch import switch_checkpointing
from tests.measure.toys import (
    WIDTH,
    BareLayer,
    CallsForward,
    Layer,
    Model,
    PlainLayer,
    SharingLayer,
    Slipping,
    Stage,
    SureLayer,
    changed,
    model_of,
    run,
    snapshot,
    values,
)

pytestmark = [pytest.mark.both, pytest.mark.torch]

both_modes = pytest.mark.parametrize("mode", ["non_reentrant", "reentrant"])


@both_modes
def test_blocks_that_share_a_module_are_counted_apart(mode: Mode) -> None:
    shared = PlainLayer()
    model = model_of(lambda: SharingLayer(shared), PlainLayer, lambda: SharingLayer(shared))
    assert run(model, mode).entries == {"0": Entries(1, 1), "1": Entries(1, 0), "2": Entries(1, 1)}


def test_a_recompute_behind_a_replaced_forward_is_counted() -> None:
    model = model_of(PlainLayer)
    layer = model.layers[0]
    original = layer.forward
    layer.forward = lambda hidden_states: checkpoint(original, hidden_states, use_reentrant=False)
    assert run(model).entries == {"0": Entries(1, 1)}


@both_modes
def test_a_block_that_is_not_trained_is_not_counted(mode: Mode) -> None:
    class Skipping(SureLayer):
        def forward(self, hidden_states: Tensor) -> Tensor:
            return hidden_states * 2

    model = model_of(SureLayer, Skipping)
    entries = run(model, mode, {"used": model.layers[0], "idle": model.layers[1].get_submodule("linear")}).entries
    assert entries == {"used": Entries(1, 1), "idle": Entries(0, 0)}


def test_a_part_that_others_recompute_is_no_witness() -> None:
    class Elsewhere(Model):
        def run_layers(self, hidden_states: Tensor) -> Tensor:
            shared = self.layers[0].get_submodule("linear")
            recomputed = checkpoint(shared, hidden_states, use_reentrant=False)
            return super().run_layers(hidden_states) + recomputed  # type: ignore[no-any-return]

    model = model_of(PlainLayer, whole=Elsewhere)
    model.again = model.layers[0].get_submodule("linear")
    assert run(model).entries == {"0": Entries(1, 0)}


def test_nothing_of_the_counting_stays_behind() -> None:
    model = model_of(Layer, Stage)
    switch_checkpointing(model, "reentrant")
    before = snapshot(model)
    with EntryCounter(model, dict(model.layers.named_children())):
        assert changed(before, snapshot(model))
    assert changed(before, snapshot(model)) == []


@pytest.mark.parametrize("handed", [lambda layer: layer.forward, lambda layer: partial(layer.forward)])
def test_a_checkpointing_function_finds_the_block_behind_what_it_is_handed(handed: Any) -> None:
    class Asking(PlainLayer):
        _gradient_checkpointing_func: Any

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return vars(self)["_gradient_checkpointing_func"](handed(self), *args, **kwargs)

    def owner(function: Any, *args: Any) -> Any:
        bound: Any = function.func if isinstance(function, partial) else function
        blocks.append(bound.__self__)
        return function(*args)

    blocks: list[nn.Module] = []
    model = model_of(Asking)
    vars(model.layers[0])["_gradient_checkpointing_func"] = owner
    with EntryCounter(model, {"layers.0": model.layers[0]}) as counter:
        model(**values())
    assert blocks == [model.layers[0]]
    assert counter.entries()["layers.0"].forward == 1


@both_modes
@pytest.mark.parametrize("kind", [Layer, BareLayer, Stage])
def test_a_recompute_from_another_state_of_the_generator_is_seen(mode: Mode, kind: type[nn.Module]) -> None:
    blocks = (kind, Layer)
    assert run(model_of(*blocks), mode).rng_mismatches == ()
    assert "0" in run(model_of(*blocks, whole=Slipping), mode).rng_mismatches


def test_a_block_that_runs_twice_may_be_recomputed_from_either_state() -> None:
    layer = Layer()
    model = model_of(lambda: layer, lambda: layer)
    record = run(model, "non_reentrant", {"layer": layer})
    assert (record.entries, record.rng_mismatches) == ({"layer": Entries(2, 2)}, ())


class Repeating(PlainLayer):
    """A layer that runs its first part twice, and another once."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = torch.tanh(self.linear(torch.tanh(self.linear(hidden_states))))
        return self.norm(hidden_states)  # type: ignore[no-any-return]


@both_modes
@pytest.mark.parametrize("kind", [PlainLayer, Repeating])
def test_a_forward_that_is_called_directly_is_counted(mode: Mode, kind: type[nn.Module]) -> None:
    model = model_of(kind, kind, whole=CallsForward)
    assert run(model).entries == {"0": Entries(1, 0), "1": Entries(1, 0)}
    assert run(model, mode).entries == {"0": Entries(1, 1, direct=True), "1": Entries(1, 1, direct=True)}


@pytest.mark.parametrize("calls", [1, 3])
def test_a_backward_that_runs_a_block_without_end_is_stopped(calls: int) -> None:
    model = model_of(PlainLayer)
    (block,) = model.layers
    with EntryCounter(model, {"0": block}) as counter:
        for _ in range(calls):
            block(torch.zeros(1, WIDTH, dtype=torch.float64))
        counter.start_backward()
        for _ in range(calls * ENDLESS):
            block(torch.zeros(1, WIDTH, dtype=torch.float64))
        with pytest.raises(EndlessBackward, match=f"PlainLayer had run {calls * ENDLESS:,} times"):
            block(torch.zeros(1, WIDTH, dtype=torch.float64))
