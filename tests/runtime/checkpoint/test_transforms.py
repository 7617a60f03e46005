"""Inside the transforms of torch.func a checkpointed block is right or refused in one sentence, never torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vjp, vmap

from ckpt_surgery import SurgeryError, wrap_blocks
from tests.measure.toys import SureLayer, model_of, values

pytestmark = [pytest.mark.torch]

VALUES = values()["values"]
BACKWARD = {
    "grad": lambda model: grad(of_parameters(model))(detached(model)),
    "vjp": lambda model: vjp(of_parameters(model), detached(model))[0],
    "jacrev": lambda model: jacrev(model)(VALUES),
    "grad under vmap": lambda model: vmap(grad(lambda row: model(row).sum()))(torch.stack([VALUES, VALUES])),
    "vmap": lambda model: vmap(model)(torch.stack([VALUES, VALUES])),
}
FORWARD: dict[str, Callable[[nn.Module], Any]] = {
    "jvp": lambda model: jvp(model, (VALUES,), (torch.ones_like(VALUES),))[1],
    "jacfwd": lambda model: jacfwd(lambda row: model(row).sum())(VALUES),
    "dual numbers": lambda model: tangent(model),
}
Call = Callable[[nn.Module], Any]


def detached(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def of_parameters(model: nn.Module) -> Callable[[dict[str, Tensor]], Tensor]:
    return lambda parameters: functional_call(model, parameters, (VALUES,)).sum()


def tangent(model: nn.Module) -> Tensor:
    numbers: Any = forward_ad
    with numbers.dual_level():
        derivative: Tensor = numbers.unpack_dual(model(numbers.make_dual(VALUES, torch.ones_like(VALUES)))).tangent
    return derivative


@pytest.mark.parametrize("call", BACKWARD.values(), ids=BACKWARD)
def test_what_needs_a_backward_is_refused(call: Call) -> None:
    model = model_of(SureLayer, SureLayer)
    with wrap_blocks(model):
        with pytest.raises(SurgeryError, match=r"^SureLayer layers\.0 cannot be checkpointed inside a transform of"):
            call(model)
        model.eval()
        call(model)
    call(model.train())


@pytest.mark.parametrize("call", FORWARD.values(), ids=FORWARD)
def test_forward_derivatives_are_those_without(call: Call) -> None:
    model = model_of(SureLayer, SureLayer)
    expected = call(model)
    with wrap_blocks(model):
        assert torch.equal(call(model), expected)


def test_a_backward_through_a_forward_derivative_gives_the_same_gradients() -> None:
    def gradients() -> list[Tensor | None]:
        model.zero_grad()
        total: Any = FORWARD["jvp"](model).sum()
        total.backward()
        return [parameter.grad for parameter in model.parameters()]

    model = model_of(SureLayer, SureLayer)
    expected = gradients()
    with wrap_blocks(model, save="matmul"):
        torch.testing.assert_close(gradients(), expected, rtol=0, atol=0)
