"""Frozen weights that are whole only while their module runs, as in DeepSpeed's ZeRO-3.

`tests/integrations/test_deepspeed.py` has the real one.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from ckpt_surgery import wrap_blocks

pytestmark = [pytest.mark.both, pytest.mark.torch]


class Scale(nn.Module):
    """A product that saves the weight itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(2, 8), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Adapted(nn.Module):
    """A frozen layer and one that trains beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = Scale()
        self.adapter = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.frozen(x) + self.adapter(torch.sin(x)))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Adapted() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def part(model: nn.Module) -> None:
    """Let each frozen weight hold something while its module runs alone."""
    for number, module in enumerate(each for each in model.modules() if isinstance(each, Scale)):
        parameter, whole = module.weight, module.weight.data
        parameter.ds_id = number  # type: ignore[attr-defined]

        def gather(module: Any, *_: Any, whole: Tensor = whole) -> None:
            module.ds_grads_remaining = 1
            module.weight.data = whole

        def empty(module: Any, *_: Any) -> None:
            module.weight.data = torch.empty(0, dtype=torch.double)

        module.register_forward_pre_hook(gather)
        module.register_forward_hook(empty)
        empty(module)


@pytest.mark.parametrize("self_check", ["first", "always"])
def test_weights_empty_outside_of_their_module_give_the_same_gradients(self_check: Any) -> None:
    model = Stack().double()
    plain = copy.deepcopy(model)
    part(model)
    surgery = wrap_blocks(model, self_check=self_check)
    x = torch.randn(2, 8, dtype=torch.double)
    for _ in range(5):
        for each in (model, plain):
            each.zero_grad()
            each(x).square().sum().backward()
        ours = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
        theirs = {name: p.grad for name, p in plain.named_parameters() if p.requires_grad}
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert surgery.checkpointing is not None
