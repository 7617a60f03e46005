"""Under a memory budget torch.compile draws dropout again, and dropped places get a gradient (CKPT012)."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config

pytestmark = [pytest.mark.torch]


@pytest.mark.parametrize(("budget", "is_wrong"), [(1.0, False), (0.5, True)])
def test_a_budget_below_1_draws_dropout_again(budget: float, is_wrong: bool) -> None:
    first, last = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(inputs: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        dropped = nn.functional.dropout(torch.sin(first(inputs)) + added, 0.5)
        return dropped, torch.tanh(last(torch.tanh(dropped)))

    torch.manual_seed(0)
    torch.compiler.reset()
    added = torch.zeros(16, 16, requires_grad=True)
    with functorch_config.patch(activation_memory_budget=budget):
        compiled = torch.compile(forward, backend="aot_eager_decomp_partition")
        dropped, output = compiled(torch.randn(16, 16), added)
        output.sum().backward()  # type: ignore[no-untyped-call]
    assert added.grad is not None
    assert bool(added.grad[dropped == 0].any()) == is_wrong
