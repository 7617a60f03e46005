"""A recompute begins with its forward's state and ends with the present one; without that it is shown to be wrong.

State is a short list: written buffers and frozen parameters, set attributes, training flags, the kernels of attention,
and generators. `self_check/test_check` tests what is reported instead.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ckpt_surgery import SurgeryError, SurgeryWarning, wrap_blocks
from ckpt_surgery.runtime.checkpoint.state import attention_kernels
from tests.zoo import state_toys as toys
from tests.zoo.state_toys import (
    WIDTH,
    AverageBlock,
    Make,
    ScalingBlock,
    Stack,
    checkpoint_natively,
    same,
    stack,
    train,
    two,
)

pytestmark = [pytest.mark.torch]

LARGE = 8192
"""Elements of a buffer that is not copied in every call."""


def replace_average(block: AverageBlock) -> None:
    block.average = block.average * 1.5


def write_late(block: AverageBlock) -> None:
    """Write past the count of writes, and only after the calls that are watched."""
    block.calls = getattr(block, "calls", 0) + 1  # type: ignore[assignment]
    if block.calls > 4:  # type: ignore[operator]
        block.average.data.mul_(1.5)


def average(update: Callable[[AverageBlock], object], size: int = 1) -> Make:
    return two(partial(AverageBlock, update, size))


class TemperedBlock(ScalingBlock):
    """A block that clamps a trained parameter before use, or lets it grow."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.temperature = nn.Parameter(torch.full((1,), 2.0))

    def scale(self) -> Any:
        with torch.no_grad():
            self.temperature.mul_(self.factor).clamp_(max=1.5)
        return self.temperature.sin()


class InsideBlock(toys.CountingBlock):
    """A block that takes a gradient through inner blocks in its forward."""

    def forward(self, hidden: Tensor) -> Tensor:
        energy = super().forward(hidden).square().sum()
        (slope,) = torch.autograd.grad(energy, hidden, create_graph=True)
        return super().forward(hidden - 0.1 * slope)


RESTORED: dict[str, Make] = {
    "a buffer": average(lambda block: block.average.mul_(1.5)),
    "a large buffer": average(lambda block: block.average.mul_(1.5), LARGE),
    "a buffer written through .data": average(lambda block: block.average.data.mul_(1.5)),
    "a large buffer written through .data": average(lambda block: block.average.data.mul_(1.5), LARGE),
    "a buffer written through .data later": average(write_late),
    "a buffer that is replaced": average(replace_average),
    "attributes": two(toys.CountingBlock),
    "a frozen parameter": two(toys.CodebookBlock),
    "a frozen parameter that follows": two(toys.FollowingBlock),
    "running statistics": two(toys.EnergyBlock),
    "random": two(toys.PythonBlock),
    "numpy.random": two(toys.NumpyBlock),
}


ALSO_RIGHT: dict[str, Make] = {
    "a trained parameter that the block clamps": two(partial(TemperedBlock, 1.0)),
    "a layer that the first forward makes": two(toys.LazyBlock),
    "a backward inside a forward": two(InsideBlock),  # which recomputes the block that runs
}


@pytest.mark.parametrize("check", ["first", "never"])
@pytest.mark.parametrize("make", (RESTORED | ALSO_RIGHT).values(), ids=RESTORED | ALSO_RIGHT)
def test_a_recompute_begins_with_the_state_of_then(make: Make, check: Any) -> None:
    wrapped = stack(make)
    wrap_blocks(wrapped, self_check=check)
    assert same(train(wrapped, steps=6), train(stack(make), steps=6))


@pytest.mark.parametrize("make", RESTORED.values(), ids=RESTORED)
def test_without_a_surgery_the_step_is_wrong_or_fails(make: Make) -> None:
    native = stack(make)
    checkpoint_natively(native)
    with contextlib.suppress(RuntimeError):
        assert not same(train(native, steps=6), train(stack(make), steps=6))


@pytest.mark.parametrize("check", ["first", "never"])
def test_several_forwards_go_before_one_backward(check: Any) -> None:
    def trained(model: Stack) -> list[Tensor]:
        for _ in range(4):
            model.zero_grad()
            values = torch.linspace(-1, 1, 16 * toys.WIDTH).view(16, toys.WIDTH)
            (model(values) * model(values * 2)).backward()
        return [*(p.grad for p in model.parameters() if p.grad is not None), *model.buffers()]

    wrapped, plain = (stack(average(lambda block: block.average.mul_(1.5))) for _ in range(2))
    wrap_blocks(wrapped, self_check=check)
    assert all(map(torch.equal, trained(wrapped), trained(plain)))


@pytest.mark.parametrize("what", ["a large buffer", "an attribute"])
def test_what_is_written_late_is_reported_in_turn(what: str) -> None:
    # Until its turn a block's recompute has written it once more; from then on it is written once.
    model = stack(average(lambda block: None, LARGE))
    wrap_blocks(model)
    train(model, steps=4)
    layer: Any = model.layers[1]

    def count(block: Any) -> None:
        block.calls = getattr(block, "calls", 0) + 1

    layer.update = count if what == "an attribute" else lambda block: block.average[1:].add_(1)
    name = "calls" if what == "an attribute" else "average"
    with pytest.warns(
        SurgeryWarning, match=rf"AverageBlock layers\.1 began to change its {name} after its first steps"
    ):
        train(model, steps=2)
    before = layer.calls if what == "an attribute" else float(layer.average[1])
    train(model, steps=3)
    assert (layer.calls if what == "an attribute" else float(layer.average[1])) == before + 3


@pytest.mark.parametrize(
    "write", [lambda block: block.average.mul_(1.5), replace_average], ids=["written", "replaced"]
)
@pytest.mark.filterwarnings("ignore::ckpt_surgery.SurgeryWarning")
def test_what_is_written_late_and_read_is_refused(write: Callable[[AverageBlock], object]) -> None:
    model = stack(average(lambda block: None, LARGE))
    wrap_blocks(model)
    train(model, steps=4)
    layer: Any = model.layers[1]
    layer.update = write
    with pytest.raises(SurgeryError, match=r"recomputing AverageBlock layers\.1 gave a different result"):
        train(model, steps=2)


def test_a_trained_parameter_that_a_block_lets_grow_is_refused() -> None:
    growing = stack(two(partial(TemperedBlock, 0.7)))
    wrap_blocks(growing)
    with pytest.raises(SurgeryError, match=r"recomputing TemperedBlock layers\.1 gave a different result"):
        train(growing)


class RandomBlock(ScalingBlock):
    """A block that draws from Python's generator once told to."""

    drawing = False

    def scale(self) -> Any:
        return 1 + (random.random() if self.drawing else 0.0)


def test_draws_that_begin_late_are_reported() -> None:
    model = stack(two(RandomBlock))
    wrap_blocks(model, self_check=4)
    train(model, steps=3)
    layers: Any = model.layers
    for layer in layers:
        layer.drawing = True
    message = r"RandomBlock layers\.0 began to change the generators of Python or numpy after its first steps"
    with pytest.warns(SurgeryWarning, match=message), pytest.raises(SurgeryError, match="gave a different result"):
        train(model, steps=3)


class GrowingBlock(ScalingBlock):
    """A block that also runs another module, if given one."""

    def __init__(self) -> None:
        super().__init__()
        self.part: nn.Module | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = super().forward(hidden)
        return hidden if self.part is None else self.part(hidden)


class ThawingBlock(ScalingBlock):
    """A block that writes a buffer while a part of it is in evaluation mode."""

    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Identity()
        self.register_buffer("average", torch.ones(LARGE))

    def scale(self) -> Any:
        if not self.part.training:
            self.average.mul_(1.1)
        return self.average[0].clone()


def evaluate_a_part(model: nn.Module) -> None:
    layers: Any = model.get_submodule("layers")
    for layer in layers:
        layer.part.eval()


def give_a_part(model: nn.Module) -> None:
    layers: Any = model.get_submodule("layers")
    for layer in layers:
        layer.part = nn.BatchNorm1d(toys.WIDTH)


def replace_a_part(model: nn.Module) -> None:
    layers: Any = model.get_submodule("layers")
    for layer in layers:
        layer.up = nn.Sequential(nn.BatchNorm1d(toys.WIDTH), layer.up)


@pytest.mark.parametrize(
    ("kind", "change"), [(ThawingBlock, evaluate_a_part), (GrowingBlock, give_a_part), (ScalingBlock, replace_a_part)]
)
def test_what_is_written_is_learned_again(kind: Any, change: Callable[[nn.Module], None]) -> None:
    wrapped, plain = stack(two(kind)), stack(two(kind))
    wrap_blocks(wrapped, self_check="never")
    for model in (wrapped, plain):
        train(model, steps=2)
        change(model)
    assert same(train(wrapped, steps=2), train(plain, steps=2))


def test_weights_that_were_loaded_between_steps_must_not_be_written_either() -> None:
    model = stack(two(ScalingBlock))
    wrap_blocks(model, self_check="never")
    train(model)
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    loss = model(torch.ones(2, toys.WIDTH))
    with torch.no_grad():
        model.layers[1].get_parameter("up.weight").mul_(2)
    with pytest.raises(
        SurgeryError, match=r"ScalingBlock layers\.1 cannot be recomputed: its up\.weight was modified"
    ):
        loss.backward()


class ModeBlock(ScalingBlock):
    """A block that scales while a part of it is in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Identity()

    def scale(self) -> Any:
        return 1 + self.part.training


def evaluate(model: nn.Module) -> None:
    model.eval()


def gradients_after(model: nn.Module, between: Callable[[nn.Module], object]) -> list[Any]:
    """Run something between a step's forward and backward; return the gradients in the order of parameters."""
    parameters = list(model.parameters())
    loss = model(torch.linspace(-1, 1, 16 * toys.WIDTH).view(16, toys.WIDTH))
    between(model)
    loss.backward()
    return [parameter.grad for parameter in parameters]


@pytest.mark.parametrize("steps", [0, 4], ids=["at first", "later"])
@pytest.mark.parametrize("between", [evaluate, evaluate_a_part])
def test_a_change_before_the_backward_is_put_back(between: Callable[[nn.Module], None], steps: int) -> None:
    wrapped, plain = stack(two(ModeBlock)), stack(two(ModeBlock))
    wrap_blocks(wrapped)
    for model in (wrapped, plain):
        train(model, steps)
        model.zero_grad()
    assert all(map(torch.equal, gradients_after(wrapped, between), gradients_after(plain, between)))
    ours, theirs = ([module.training for module in model.modules()] for model in (wrapped, plain))
    assert ours == theirs


@pytest.mark.parametrize(("library", "times"), [("peft.tuners", 2), ("scripts", 1)])
def test_hooks_of_libraries_alone_come_back_for_a_recompute(library: str, times: int) -> None:
    def hook(*_: Any) -> None:
        ran.append(None)

    hook.__module__ = library
    ran: list[None] = []
    model = stack(two(toys.CountingBlock))
    wrap_blocks(model)
    inside = [part for block in model.layers for part in block.children()]
    handles = [part.register_forward_pre_hook(hook) for part in inside]
    loss = model(torch.randn(2, toys.WIDTH)).sum()
    for handle in handles:
        handle.remove()
    loss.backward()
    assert len(ran) == times * len(inside)
    assert not any(part._forward_pre_hooks for part in inside)


class Attending(nn.Module):
    """Attention to its own rows."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        heads = self.project(hidden).view(1, 1, *hidden.shape)
        return hidden + scaled_dot_product_attention(heads, heads, heads).view_as(hidden)


def test_a_recompute_has_the_kernels_of_its_forward() -> None:
    torch.manual_seed(0)
    model = Stack([Attending(), Attending()])
    wrap_blocks(model)
    seen: list[tuple[bool, ...]] = []
    for layer in model.layers:
        layer.get_submodule("project").register_forward_hook(lambda *_: seen.append(attention_kernels()))
    outside = attention_kernels()
    with sdpa_kernel(SDPBackend.MATH):
        loss = model(torch.ones(4, WIDTH))
        inside = attention_kernels()
    assert inside != outside
    loss.backward()
    assert [inside] * 4 == seen
    assert attention_kernels() == outside


def test_an_error_in_a_recompute_leaves_the_kernels_as_they_were() -> None:
    model = Stack([Attending(), Attending()])
    wrap_blocks(model)
    outside = attention_kernels()
    with sdpa_kernel(SDPBackend.MATH):
        loss = model(torch.ones(4, WIDTH))
    model.layers[0].get_submodule("project").register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(SurgeryError, match="ZeroDivisionError"):
        loss.backward()
    assert attention_kernels() == outside
