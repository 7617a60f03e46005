"""What reentrant checkpointing cannot do raises a SurgeryError that says so, and the other mode does it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

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


@both_modes
@pytest.mark.parametrize(
    ("use", "message"),
    [
        (penalty, "second derivatives would be lost"),
        (gradient_function, r"torch\.autograd\.grad, and backward with inputs="),
        (some_inputs, r"torch\.autograd\.grad, and backward with inputs="),
        (twice, r"its parameter up\.weight has a hook and is used more than once"),
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
