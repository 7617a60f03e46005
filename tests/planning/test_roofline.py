"""The least time of operators: the slower of computing and moving for each."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from ckpt_surgery import explain
from ckpt_surgery.planning.allocations import OperatorWork, StepPhase
from ckpt_surgery.planning.devices import DEVICES, Device
from ckpt_surgery.planning.roofline import moved_bytes, seconds_of

pytestmark = pytest.mark.torch
DEVICE = Device("Mine", flops=100.0, bandwidth=10.0, memory=1, link=1.0, source="a test")
aten = torch.ops.aten


def test_each_operator_takes_the_longer_of_its_two_times() -> None:
    computes, moves = (OperatorWork("", StepPhase.FORWARD, *costs) for costs in ((1000, 10), (10, 1000)))
    assert seconds_of([computes], DEVICE) == 10.0
    assert seconds_of([moves], DEVICE) == 100.0
    assert seconds_of([computes, moves], DEVICE) == 110.0, "and not that of their sums"


@pytest.mark.parametrize(
    ("func", "args", "expected"),
    [
        (aten.mm.default, (torch.zeros(4, 8), torch.zeros(8, 2)), 4 * (32 + 16 + 8)),
        (aten.add.Tensor, (torch.zeros(4, 1).expand(4, 100), torch.zeros(4, 100)), 4 * (4 + 400 + 400)),
        (aten.add_.Tensor, (torch.zeros(8), torch.zeros(8)), 4 * 24),
        (aten.view.default, (torch.zeros(4, 8), [32]), 0),
        (aten.empty.memory_format, ([64],), 0),
        (aten.cat.default, ([torch.zeros(2), torch.zeros(3)],), 4 * 10),
    ],
)
def test_bytes_are_read_and_written(func: Any, args: tuple[Any, ...], expected: int) -> None:
    assert moved_bytes(func, args, {}, func(*args)) == expected


def test_a_step_takes_at_least_the_time_of_its_products_and_parameters() -> None:
    model = nn.Sequential(nn.Linear(512, 512, bias=False), nn.ReLU(), nn.Linear(512, 512, bias=False))
    wide = explain(model, torch.zeros(4096, 512), device="H100")
    h100 = DEVICES["h100"]
    assert wide.seconds > (wide.forward_flops + wide.backward_flops) / h100.flops
    one_row = explain(model, torch.zeros(1, 512), device="H100")
    assert one_row.seconds > 2 * one_row.parameter_bytes / h100.bandwidth, (
        "read in the forward, written in the backward"
    )
    assert explain(model, torch.zeros(1, 512)).seconds == 0.0
