"""What reentrant checkpointing cannot do raises a SurgeryError that says so, and the other mode does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ckpt_surgery import SurgeryError, wrap_blocks
from tests.zoo.state_toys import WIDTH, ScalingBlock, Stack
from tests.zoo.surgery_toys import Mode, both_modes

pytestmark = [pytest.mark.torch]

Use = Callable[[Stack, Tensor], None]


def values() -> Tensor:
    return torch.linspace(-1, 1, 4 * WIDTH).view(4, WIDTH).requires_grad_()


def penalty(model: Stack, given: Tensor) -> None:
    loss = model(given)
    loss.backward(create_graph=True)
    assert given.grad is not None
    given.grad.square().sum().backward()  # type: ignore[no-untyped-call]


def gradient_function(model: Stack, given: Tensor) -> None:
    (gradient,) = torch.autograd.grad(model(given), model.first.weight)
    model.first.weight.grad = gradient


def some_inputs(model: Stack, given: Tensor) -> None:
    model(given).backward(inputs=[model.first.weight])


def inner_inputs(model: Stack, given: Tensor) -> None:
    model(given).backward(inputs=list(model.layers.parameters()))


def inner_inputs_of_a_frozen_rest(model: Stack, given: Tensor) -> None:
    model.first.requires_grad_(False)
    inner_inputs(model, given.detach())


def clip(model: Stack) -> None:
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))  # type: ignore[no-untyped-call]


def twice(model: Stack, given: Tensor) -> None:
    clip(model)
    model.layers = nn.ModuleList([model.layers[0]] * 2)  # after the surgery: the same block runs twice
    model(given).backward()


def tied_outside(model: Stack, given: Tensor) -> None:
    clip(model)
    weight = model.get_parameter("layers.0.up.weight")
    (model(given) + weight.square().sum()).backward()


def hooked_late(model: Stack, given: Tensor) -> None:
    loss = model(given)
    clip(model)
    loss.backward()


def shared_from_outside(model: Stack, given: Tensor) -> None:
    outside = nn.Linear(WIDTH, WIDTH)
    nn.init.ones_(outside.weight)
    for layer in model.layers:
        layer.scale = lambda: outside.weight.sum()  # type: ignore[assignment]
    outside.weight.register_post_accumulate_grad_hook(lambda _: None)  # type: ignore[no-untyped-call]
    model(given).backward()


@both_modes
@pytest.mark.parametrize(
    ("use", "message"),
    [
        (penalty, "second derivatives would be lost"),
        (gradient_function, r"torch\.autograd\.grad, and backward with inputs="),
        (some_inputs, r"torch\.autograd\.grad, and backward with inputs="),
        (inner_inputs, r"torch\.autograd\.grad, and backward with inputs="),
        (inner_inputs_of_a_frozen_rest, r"torch\.autograd\.grad, and backward with inputs="),
        (twice, r"its parameter up\.weight has a hook and is used more than once"),
        (hooked_late, r"its parameter up\.weight got a hook after the forward"),
        (shared_from_outside, r"its parameter of shape \(6, 6\) from outside of it has a hook and is used more"),
        (tied_outside, r"its parameter up\.weight has a hook and is used more than once"),
    ],
)
def test_it_is_refused_in_reentrant_mode_and_right_in_the_other(use: Use, message: str, mode: Mode) -> None:
    torch.manual_seed(0)
    model = Stack([ScalingBlock(), ScalingBlock()])
    torch.manual_seed(0)
    plain = Stack([ScalingBlock(), ScalingBlock()])
    wrap_blocks(model, use_reentrant=mode == "reentrant")
    if mode == "reentrant":
        with pytest.raises(SurgeryError, match=rf"ScalingBlock layers\.\d cannot be recomputed: .*{message}"):
            use(model, values())
        return
    use(model, values())
    use(plain, values())
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        assert ours.grad is None or theirs.grad is None or torch.equal(ours.grad, theirs.grad)


def test_where_nothing_is_anchored_a_late_hook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    torch.manual_seed(0)
    model = Stack([ScalingBlock(), ScalingBlock()])
    wrap_blocks(model, use_reentrant=True)
    hooked_late(model, values())
    assert all(parameter.grad is not None for parameter in model.parameters())


@both_modes
def test_hooks_on_parameters_that_are_used_once_run_as_they_did(mode: Mode) -> None:
    results = []
    for surgery in (False, True):
        torch.manual_seed(0)
        model = Stack([ScalingBlock(), ScalingBlock()])
        clip(model)
        if surgery:
            wrap_blocks(model, use_reentrant=mode == "reentrant")
        for _ in range(3):
            model(values()).backward()
        results.append([parameter.grad for parameter in model.parameters()])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


class TwoResults(ScalingBlock):
    """Returns a second tensor that is made of the first."""

    def forward(self, hidden: Tensor) -> Tensor:
        first = super().forward(hidden)
        return Both(first, torch.sin(first))  # type: ignore[return-value]


class Both(NamedTuple):
    first: Tensor
    second: Tensor


@pytest.mark.parametrize("watched", [True, False])
def test_a_kept_gradient_of_one_of_several_results_is_refused(watched: bool) -> None:
    model = Sums([TwoResults(), TwoResults()])
    wrap_blocks(model, use_reentrant=True)
    loss = model(values(), keep=watched)
    if not watched:
        loss.backward()
        return
    with pytest.raises(
        SurgeryError, match=r"TwoResults layers\.\d returns several tensors, and the gradient of one is"
    ):
        loss.backward()


class Sums(Stack):
    """Adds up what its blocks return; with `keep`, the gradient of each first result is kept."""

    def forward(self, given: Tensor, *, keep: bool = False) -> Tensor:
        hidden = self.first(given)
        self.kept = []
        for layer in self.layers:
            first, second = layer(hidden)
            if keep:
                first.retain_grad()
                self.kept.append(first)
            hidden = first + second
        loss: Tensor = self.last(hidden).square().mean()
        return loss


@both_modes
def test_parameters_that_are_computed_are_right_or_refused(mode: Mode) -> None:
    torch.manual_seed(0)
    model = Stack([ScalingBlock(), ScalingBlock()])
    names = dict(model.named_parameters())

    def loss(of: nn.Module) -> Tensor:
        result: Tensor = functional_call(of, {name: p * 0.9 for name, p in names.items()}, (values(),))
        return result

    loss(model).backward()  # type: ignore[no-untyped-call]
    expected = [p.grad for p in names.values()]
    model.zero_grad()
    wrap_blocks(model, use_reentrant=mode == "reentrant")
    if mode == "reentrant":
        with pytest.raises(SurgeryError, match=r"ScalingBlock layers\.0 runs with a computed tensor as its parameter"):
            loss(model)
        return
    loss(model).backward()  # type: ignore[no-untyped-call]
    for ours, theirs in zip((p.grad for p in names.values()), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


class Energy(nn.Module):
    """A block that goes down the gradient of an energy."""

    def __init__(self, *, broken: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.broken = broken

    def forward(self, x: Tensor) -> Tensor:
        if self.broken:
            raise RuntimeError("this has nothing to do with gradients")
        (slope,) = torch.autograd.grad(self.linear(x).tanh().sum(), x, create_graph=True)
        moved: Tensor = x - slope
        return moved


def test_a_gradient_inside_a_block_needs_the_other_mode() -> None:
    model = nn.Sequential(Energy(), Energy())
    expected, wrapped = values(), values()
    model(expected).sum().backward()
    with (
        wrap_blocks(model, use_reentrant=True),
        pytest.raises(SurgeryError, match="takes a gradient inside its forward"),
    ):
        model(values())
    with wrap_blocks(model):
        model(wrapped).sum().backward()
    assert expected.grad is not None
    assert wrapped.grad is not None
    assert torch.equal(expected.grad, wrapped.grad)


def test_another_error_of_a_block_stays_what_it_is() -> None:
    model = nn.Sequential(Energy(broken=True), Energy(broken=True))
    with wrap_blocks(model, use_reentrant=True), pytest.raises(RuntimeError, match="nothing to do with gradients"):
        model(values())
