"""Whatever a block takes, writes and returns: gradients, buffers and randomness are those of an unwrapped run.

On toys, beside the wrong results of transformers' own checkpointing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn

from ckpt_surgery import SurgeryError, wrap_blocks
from ckpt_surgery.measure.switch import switch_checkpointing
from tests.measure import toys
from tests.measure.toys import model_of, values
from tests.zoo import surgery_toys as own
from tests.zoo.surgery_toys import MODES, ONCE, Mode, blocks_of, both_modes, differences, step

pytestmark = [pytest.mark.both, pytest.mark.torch]

NEVER: tuple[Mode, ...] = ()
REENTRANT: tuple[Mode, ...] = ("reentrant",)
Make = Callable[[], toys.Model]


def of(layer: Callable[[], nn.Module], whole: Callable[..., toys.Model] = toys.Model, **options: Any) -> Make:
    """Build a model of three such blocks."""
    return lambda: model_of(layer, layer, layer, whole=whole, **options)


# the model, and the modes in which transformers' own checkpointing goes wrong on it
MODELS: dict[str, tuple[Make, tuple[Mode, ...]]] = {
    "one tensor by position": (of(toys.SureLayer), NEVER),
    "dropout": (of(toys.Layer), NEVER),
    "hidden states by keyword": (of(toys.Layer, by_keyword=True), REENTRANT),
    "a second stream by keyword": (of(toys.TwoStreamLayer, toys.ResidualByKeyword), REENTRANT),
    "a second stream in a list": (of(toys.TwoStreamLayer, toys.ResidualInAList), REENTRANT),
    "a dictionary": (of(own.DictLayer, own.InADict), REENTRANT),
    "a dataclass": (of(own.DictLayer, own.InADataclass), REENTRANT),
    "a tensor returned inside an inner tuple": (of(toys.PairLayer, toys.PairsInTurn), REENTRANT),
    "a shared dictionary": (of(toys.WritingLayer, toys.SharedDictionary), MODES),
    "a shared list": (of(own.ListLayer, own.SharedList), MODES),
    "scores left on the block": (of(toys.RoutingLayer, toys.RouterLoss), REENTRANT),
    "outputs of a submodule taken by a hook": (of(own.HookedLayer, own.Collecting), REENTRANT),
    "arguments of a submodule taken by a hook": (of(own.HookedLayer, own.CollectingInputs), REENTRANT),
    "a first block without gradient in its input": (of(toys.SureLayer, toys.NoProjection), REENTRANT),
    "batch normalisation": (of(own.NormedLayer), MODES),
    "spectral normalisation": (of(own.SpectralLayer), MODES),
    "a number of its own": (of(toys.CountingLayer), MODES),
    "a block inside a block": (lambda: model_of(toys.Stage, toys.Stage), MODES),
}
models = pytest.mark.parametrize("name", MODELS)


@contextlib.contextmanager
def or_error(problems: list[str]) -> Iterator[None]:
    """Count an exception as a difference."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        problems.append(type(error).__name__)


@models
def test_gradients_and_state_are_those_without(name: str) -> None:
    make, _ = MODELS[name]
    model, plain = make(), make()
    wrap_blocks(model)
    for seed in range(3):
        expected, record = step(plain, seed=seed), step(model, seed=seed)
        assert differences(record, expected) == []
        assert set(record.entries.values()) == {ONCE}
        assert any(g is not None and g.any() for g in record.gradients.values())


@both_modes
@models
def test_transformers_own_is_wrong_where_it_is_said(name: str, mode: Mode) -> None:
    make, broken = MODELS[name]
    model, plain = make(), make()
    switch_checkpointing(model, mode)
    problems: list[str] = []
    for seed in range(2):
        expected = step(plain, seed=seed)
        with or_error(problems):
            seen = step(model, seed=seed)
            problems += differences(seen, expected)
            problems += [name for name, entries in seen.entries.items() if entries != ONCE]
    assert bool(problems) == (mode in broken)


def test_gradients_reach_the_models_inputs() -> None:
    results = []
    for wrapped in (False, True):
        model = MODELS["a first block without gradient in its input"][0]()
        if wrapped:
            wrap_blocks(model)
        given = values()["values"].requires_grad_()
        model(given).sum().backward()
        assert given.grad is not None
        results.append(given.grad)
    assert torch.equal(*results)


def test_an_argument_that_is_returned_is_its_own() -> None:
    make = of(own.ReturningLayer, own.Returned)
    model, plain = make(), make()
    wrap_blocks(model)
    assert differences(step(model), step(plain)) == []


def test_tensors_in_any_object_keep_their_gradient() -> None:
    make = of(own.DictLayer, own.InAnObject)
    model, plain = make(), make()
    expected = step(plain)
    with wrap_blocks(model):
        assert differences(step(model), expected) == []
    switch_checkpointing(model, "reentrant")
    assert differences(step(model), expected) != []


def test_an_object_that_blocks_write_into_is_refused() -> None:
    model = of(own.ObjectLayer, own.SharedObject)()
    with wrap_blocks(model), pytest.raises(SurgeryError, match=r"recomputing ObjectLayer layers\.\d gave a different"):
        step(model)
    switch_checkpointing(model, "non_reentrant")
    assert differences(step(model), step(of(own.ObjectLayer, own.SharedObject)())) != []


OUTSIDE: list[Tensor] = []


class LeavingLayer(toys.SureLayer):
    """A layer that leaves a tensor with gradient in a list outside of the model."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden = super().forward(hidden_states)
        OUTSIDE.append(torch.exp(hidden))
        return hidden


def gradients_with_what_is_outside(model: toys.Model) -> list[Tensor]:
    OUTSIDE.clear()
    loss = model(**values()).sum() + torch.stack(OUTSIDE).sum()
    return list(torch.autograd.grad(loss, [*model.parameters()]))


def test_a_tensor_left_outside_keeps_its_gradient() -> None:
    model = of(LeavingLayer)()
    expected = gradients_with_what_is_outside(model)
    wrap_blocks(model)
    assert all(map(torch.equal, gradients_with_what_is_outside(model), expected))


def test_a_gradient_argument_that_is_written_is_refused() -> None:
    model = of(own.WritingOverLayer)()
    surgery = wrap_blocks(model)
    with pytest.raises(SurgeryError, match=r"WritingOverLayer layers\.0 .* modified its argument hidden_states in pl"):
        model(**values())
    surgery.undo()
    switch_checkpointing(model, "non_reentrant")
    with pytest.raises(RuntimeError, match=r"in.?place"):  # in the backward, and nobody knows where
        model(**values()).sum().backward()


def test_another_argument_that_is_written_is_refused() -> None:
    model, plain = of(own.MaskLayer, own.Masked)(), of(own.MaskLayer, own.Masked)()
    with (
        wrap_blocks(model),
        pytest.raises(SurgeryError, match=r"MaskLayer layers\.2 .* its argument mask was modified"),
    ):
        step(model)
    switch_checkpointing(model, "non_reentrant")
    assert differences(step(model), step(plain)) != []


def test_a_graph_that_is_kept_can_be_gone_through_twice() -> None:
    results = []
    for wrapped in (False, True):
        model = of(toys.WritingLayer, toys.SharedDictionary)()
        if wrapped:
            wrap_blocks(model)
        loss = model(**values()).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        results.append([p.grad for p in model.parameters()])
    assert all(map(torch.allclose, *results))


def in_bfloat16(model: nn.Module, *, all_of_it: bool) -> own.Step:
    """Take a step under autocast, with the backward inside or outside of it."""
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        result = model(values()["values"].float()).float().sum()
        if all_of_it:
            result.backward()
    if not all_of_it:
        result.backward()
    return own.Step(float(result.detach()), {name: p.grad for name, p in model.named_parameters()}, {}, {})


@pytest.mark.parametrize("all_of_it", [False, True], ids=["backward outside", "backward inside"])
def test_the_recompute_runs_under_the_autocast_of_the_forward(all_of_it: bool) -> None:
    model, plain = of(toys.SureLayer)().float(), of(toys.SureLayer)().float()
    expected = in_bfloat16(plain, all_of_it=all_of_it)
    wrap_blocks(model)
    assert differences(in_bfloat16(model, all_of_it=all_of_it), expected) == []
    assert differences(step(model, {"values": values()["values"].float()}, seed=0), expected) != []


def test_what_a_block_counts_is_as_after_one_call() -> None:
    model = of(toys.CountingLayer)()
    wrap_blocks(model)
    for number in (1, 2):
        step(model)
        assert [vars(block)["runs"] for block in blocks_of(model).values()] == [number] * 3


def test_a_block_that_does_not_train_runs_as_it_is() -> None:
    model, plain = of(toys.Layer)(), of(toys.Layer)()
    wrap_blocks(model)
    with torch.no_grad():
        torch.manual_seed(0)
        output = model(**values())
        torch.manual_seed(0)
        assert torch.equal(output, plain(**values()))
    record, expected = step(model.eval()), step(plain.eval())
    assert differences(record, expected) == []
    assert set(record.entries.values()) == {own.KEPT}


class Registering(toys.SureLayer):
    """A layer that adds a term of the loss to a list, as some routers do."""

    registry: ClassVar[list[Tensor]] = []

    def forward(self, hidden_states: Tensor) -> Tensor:
        self.registry.append(hidden_states.square().mean())
        return super().forward(hidden_states)


@pytest.mark.parametrize("early", [True, False], ids=["emptied before the forward", "emptied before the backward"])
def test_what_a_recompute_leaves_in_a_list_is_no_part_of_a_loss(early: bool) -> None:
    # Emptied before the backward, the list has this step's recomputes in the next step.
    def trained(*, wrapped: bool) -> list[Tensor | None]:
        model = model_of(Registering, Registering)
        if wrapped:
            wrap_blocks(model)
        for _ in range(2):
            if early:
                Registering.registry.clear()
            loss = model(**values()).sum() + sum(Registering.registry)
            if not early:
                Registering.registry.clear()
            loss.backward()
        Registering.registry.clear()
        return [parameter.grad for parameter in model.parameters()]

    if early:
        assert all(map(torch.equal, trained(wrapped=True), trained(wrapped=False)))  # type: ignore[arg-type]
        return
    with pytest.raises(SurgeryError, match=r"what the recompute of Registering layers\.\d has left outside of it"):
        trained(wrapped=True)
