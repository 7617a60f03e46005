"""Whatever a block is given, writes and returns: gradients, buffers and randomness are those of an unwrapped run.

On toys. Next to each stands what transformers' own checkpointing makes of the same model, where it gets it wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

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
    """A model of three such blocks."""
    return lambda: model_of(layer, layer, layer, whole=whole, **options)


# the model, and the modes in which transformers' own checkpointing goes wrong on it
MODELS: dict[str, tuple[Make, tuple[Mode, ...]]] = {
    "one tensor by position": (of(toys.SureLayer), NEVER),
    "dropout": (of(toys.Layer), NEVER),
    "hidden states by keyword": (of(toys.Layer, by_keyword=True), REENTRANT),
    "a second stream by keyword": (of(toys.TwoStreamLayer, toys.ResidualByKeyword), REENTRANT),
    "a second stream in a list": (of(toys.TwoStreamLayer, toys.ResidualInAList), REENTRANT),
    "a dictionary": (of(own.DictLayer, own.InADict), REENTRANT),
    "another mapping": (of(own.DictLayer, own.InAUserDict), REENTRANT),
    "a dataclass": (of(own.DictLayer, own.InADataclass), REENTRANT),
    "a tensor returned inside an inner tuple": (of(toys.PairLayer, toys.PairsInTurn), REENTRANT),
    "a shared dictionary": (of(toys.WritingLayer, toys.SharedDictionary), MODES),
    "a shared list": (of(own.ListLayer, own.SharedList), MODES),
    "scores left on the block": (of(toys.RoutingLayer, toys.RouterLoss), REENTRANT),
    "outputs of a submodule taken by a hook": (of(own.HookedLayer, own.Collecting), REENTRANT),
    "arguments of a submodule taken by a hook": (of(own.HookedLayer, own.CollectingInputs), REENTRANT),
    "arguments of a submodule taken by an early hook": (of(own.HookedLayer, own.CollectingEarly), REENTRANT),
    "a first block without gradient in its input": (of(toys.SureLayer, toys.NoProjection), REENTRANT),
    "batch normalisation": (of(own.NormedLayer), MODES),
    "spectral normalisation": (of(own.SpectralLayer), MODES),
    "numbers and lists of its own": (of(own.TallyingLayer), MODES),
    "a block inside a block": (lambda: model_of(toys.Stage, toys.Stage), MODES),
}
models = pytest.mark.parametrize("name", MODELS)


@contextlib.contextmanager
def or_error(problems: list[str]) -> Iterator[None]:
    """What raises is as wrong as what differs."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        problems.append(type(error).__name__)


@models
def test_gradients_and_state_are_those_of_an_unwrapped_run(name: str) -> None:
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
def test_transformers_own_checkpointing_is_wrong_where_it_is_said_to_be(name: str, mode: Mode) -> None:
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


def test_a_block_that_returns_what_it_was_given_leaves_that_tensors_history_alone() -> None:
    make = of(own.ReturningLayer, own.Returned)
    model, plain = make(), make()
    wrap_blocks(model)
    assert differences(step(model), step(plain)) == []


def test_torch_makes_such_a_tensor_its_own_ancestor() -> None:
    layer = own.ReturningLayer().double()
    hidden, bias = (torch.rand(3, toys.WIDTH, dtype=torch.float64, requires_grad=True) * 1 for _ in range(2))
    checkpoint(lambda h: layer(h, bias=bias), hidden, use_reentrant=True)
    assert type(bias.grad_fn).__name__ == "CheckpointFunctionBackward"  # its backward would recompute without end
    layer_in_model = model_of(own.ReturningLayer)
    wrap_blocks(layer_in_model, use_reentrant=True)
    hidden, bias = hidden.detach().requires_grad_() * 1, bias.detach().requires_grad_() * 1
    layer_in_model.layers[0](hidden, bias=bias)
    assert type(bias.grad_fn).__name__ == "MulBackward0"


def test_gradient_tensors_in_an_object_that_nobody_can_look_into_are_refused_where_they_would_be_lost() -> None:
    make = of(own.DictLayer, own.InAnObject)
    model, plain = make(), make()
    expected = step(plain)
    wrap_blocks(model)
    assert differences(step(model), expected) == []
    surgery = wrap_blocks(model, use_reentrant=True)
    with pytest.raises(SurgeryError, match=r"DictLayer layers\.0 got .* inside a Handle in its argument states: .*=F"):
        step(model)
    surgery.undo()
    switch_checkpointing(model, "reentrant")
    assert differences(step(model), expected) != []


@both_modes
def test_a_shared_object_that_blocks_write_into_is_read_as_it_was_or_refused(mode: Mode) -> None:
    make = of(own.ObjectLayer, own.SharedObject)
    model, plain = make(), make()
    expected = step(plain)
    surgery = wrap_blocks(model)
    if mode == "reentrant":
        with pytest.raises(SurgeryError, match=r"ObjectLayer layers\.\d keeps a tensor with gradient"):
            step(model)
    else:
        assert differences(step(model), expected) == []
    surgery.undo()
    switch_checkpointing(model, mode)
    problems: list[str] = []
    with or_error(problems):
        problems += differences(step(model), expected)
    assert problems != []


OUTSIDE: list[Tensor] = []


class LeavingLayer(toys.SureLayer):
    """Leaves a tensor with gradient in a list that is no part of the model."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden = super().forward(hidden_states)
        OUTSIDE.append(torch.exp(hidden))
        return hidden


def gradients_with_what_is_outside(model: toys.Model) -> list[Tensor]:
    OUTSIDE.clear()
    loss = model(**values()).sum() + torch.stack(OUTSIDE).sum()
    return list(torch.autograd.grad(loss, [*model.parameters()]))


def test_a_tensor_left_outside_of_the_model_is_refused_where_its_gradient_would_be_lost() -> None:
    model = of(LeavingLayer)()
    expected = gradients_with_what_is_outside(model)
    surgery = wrap_blocks(model, use_reentrant=True)
    with pytest.raises(SurgeryError, match=r"LeavingLayer layers\.0 keeps .* where nobody can find it"):
        model(**values())
    surgery.undo()
    wrap_blocks(model)
    OUTSIDE.clear()
    assert all(map(torch.equal, gradients_with_what_is_outside(model), expected))


@both_modes
def test_a_gradient_argument_that_the_block_writes_over_is_refused_in_the_forward(mode: Mode) -> None:
    model = of(own.WritingOverLayer)()
    surgery = wrap_blocks(model)
    with pytest.raises(SurgeryError, match=r"WritingOverLayer layers\.0 .* modified its argument hidden_states in pl"):
        model(**values())
    surgery.undo()
    switch_checkpointing(model, mode)
    with pytest.raises(RuntimeError, match=r"in.?place"):  # in the backward, and nobody knows where
        model(**values()).sum().backward()


@both_modes
def test_another_argument_that_was_written_over_is_refused(mode: Mode) -> None:
    model, plain = of(own.MaskLayer, own.Masked)(), of(own.MaskLayer, own.Masked)()
    expected = step(plain)
    surgery = wrap_blocks(model)
    with pytest.raises(SurgeryError, match=r"MaskLayer layers\.2 .* its argument mask was modified in place"):
        step(model)
    surgery.undo()
    switch_checkpointing(model, mode)
    assert differences(step(model), expected) != []


def test_statistics_are_written_once_also_when_their_module_starts_to_train_later() -> None:
    results = []
    for wrapped in (False, True):
        model = of(own.NormedLayer)()
        if wrapped:
            wrap_blocks(model)
        norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm1d)]
        for norm in norms:
            norm.eval()
        step(model)
        for norm in norms:
            norm.train()
        results.append(step(model))
    assert differences(*results) == []


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


def test_several_forwards_can_go_before_one_backward() -> None:
    results = []
    for wrapped in (False, True):
        model = of(own.NormedLayer)()
        if wrapped:
            wrap_blocks(model)
        first, second = model(**values()), model(values()["values"] * 2)
        (first * second).sum().backward()
        results.append([*(p.grad for p in model.parameters()), *model.buffers()])
    assert all(map(torch.allclose, *results))


def in_bfloat16(model: nn.Module, *, all_of_it: bool) -> own.Step:
    """A step under autocast, with the backward inside or outside of it."""
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


@pytest.mark.parametrize("kind", [toys.CountingLayer, own.TallyingLayer])
def test_what_a_block_counts_is_as_after_one_call(kind: Callable[[], nn.Module]) -> None:
    model, plain = of(kind)(), of(kind)()
    wrap_blocks(model)
    for _ in range(2):
        assert differences(step(model), step(plain)) == []
    for ours, theirs in zip(blocks_of(model).values(), blocks_of(plain).values(), strict=True):
        names = {"runs", "calls", "seen"} & vars(theirs).keys()
        assert names
        assert {n: vars(ours)[n] for n in names} == {n: vars(theirs)[n] for n in names}


def test_a_recompute_that_makes_something_else_is_an_error() -> None:
    class Changing(toys.PairLayer):
        def forward(self, hidden_states: Tensor, residual: Any = 0.0) -> Any:
            hidden, pair = super().forward(hidden_states, residual)
            return (hidden, pair) if not torch.is_grad_enabled() else (hidden, ())

    model = of(Changing, toys.PairsInTurn)()
    wrap_blocks(model, use_reentrant=True)
    with pytest.raises(SurgeryError, match=r"the recompute of Changing layers\.2 did not make the tensors"):
        step(model)


@pytest.mark.parametrize("mode", ["evaluation", "no gradients"])
def test_a_block_that_does_not_train_runs_as_it_is(mode: str) -> None:
    model, plain = of(toys.Layer)(), of(toys.Layer)()
    wrap_blocks(model, use_reentrant=True)
    if mode == "evaluation":
        record, expected = step(model.eval()), step(plain.eval())
        assert differences(record, expected) == []
        assert set(record.entries.values()) == {own.KEPT}
    else:
        with torch.no_grad():
            torch.manual_seed(0)
            output = model(**values())
            torch.manual_seed(0)
            assert torch.equal(output, plain(**values()))
