"""The bytes of optimizer states are those of real optimizers after a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from ckpt_surgery.planning.states import state_bytes
from ckpt_surgery.planning.training import Optimizer

pytestmark = [pytest.mark.both, pytest.mark.torch]

REAL: dict[Optimizer, Callable[[Any], torch.optim.Optimizer]] = {
    Optimizer.SGD: lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    Optimizer.SGD_MOMENTUM: lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    Optimizer.ADAMW: lambda parameters: torch.optim.AdamW(parameters),
    Optimizer.ADAFACTOR: lambda parameters: torch.optim.Adafactor(parameters),
}


def model(dtype: torch.dtype) -> nn.Module:
    """Build matrices, a vector, a tensor of three dimensions, a tied weight and a frozen one."""
    made = nn.ModuleDict({"first": nn.Linear(8, 24), "second": nn.Linear(8, 24), "conv": nn.Conv1d(4, 6, 3)})
    made["second"].weight = made["first"].weight
    made["frozen"] = nn.Linear(100, 100).requires_grad_(False)
    return made.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("optimizer", REAL)
def test_states_of_torch(optimizer: Optimizer, dtype: torch.dtype) -> None:
    made = model(dtype)
    real = REAL[optimizer]([parameter for parameter in made.parameters() if parameter.requires_grad])
    for parameter in made.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    real.step()
    states = [(name, value) for state in real.state.values() for name, value in state.items()]
    kept = sum(value.nbytes for name, value in states if isinstance(value, Tensor) and name != "step")
    assert state_bytes(made.parameters(), optimizer) == kept


def test_states_of_eight_bits_are_bytes_and_scales() -> None:
    large, small = nn.Parameter(torch.zeros(100, 100)), nn.Parameter(torch.zeros(64))
    assert state_bytes([large], Optimizer.ADAMW_8BIT) == 2 * (10_000 + 40 * 4)
    assert state_bytes([small], Optimizer.ADAMW_8BIT) == 2 * 64 * 4
    assert state_bytes([large, small], Optimizer.PAGED_ADAMW_8BIT) == 0
    assert state_bytes([large, small], Optimizer.NONE) == 0
