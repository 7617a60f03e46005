"""Guarded trainings on three real ranks, some of which diverge, for `test_ranks`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ckpt_surgery import guard
from ckpt_surgery.distributed import sync_gradients
from tests.rank_cases import run_cases

SIZE = 3
STEPS = 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(values))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gradient_checkpointing = True
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, values: torch.Tensor) -> Any:
        for layer in self.layers:
            values = checkpoint(layer, values, use_reentrant=False)
        return values


Change = Callable[[int, Model], None]


def train(
    *,
    around: bool = False,
    wrapped: bool = True,
    accumulated: int = 1,
    before_step: Change | None = None,
    after_step: Change | None = None,
    guarding: bool = True,
) -> dict[str, Any]:
    """Return the faults of this rank's guard in words, and how often the ranks were compared."""
    rank, model = dist.get_rank(), Model()
    outer = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watching = guard(outer if wrapped else model, on_fault="collect") if guarding else None
    for step in range(STEPS):
        for part in range(accumulated):
            alone = around or part < accumulated - 1
            with outer.no_sync() if alone else nullcontext():
                generator = torch.Generator().manual_seed(100 * step + 10 * part + rank)
                loss = (model if around else outer)(torch.randn(2, 4, generator=generator)).square().mean()
                loss.backward()
        if before_step:
            before_step(rank, model)
        optimizer.step()
        optimizer.zero_grad()
        if after_step:
            after_step(rank, model)
    dist.barrier()
    if watching is None:
        return {"faults": [], "compared": 0}
    report = watching.report()
    watching.remove()
    return {"faults": [str(fault) for fault in report.faults], "compared": report.ranks_compared}


def clipped_alone(rank: int, model: Model) -> None:
    if rank == 2:
        gradient = model.get_parameter("layers.1.linear.weight").grad
        assert gradient is not None
        gradient.mul_(0.5)


def shifted(rank: int, model: Model) -> None:
    if rank == 1:
        with torch.no_grad():
            model.get_parameter("layers.0.linear.bias").add_(0.5)


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "healthy": train,
    "accumulated": lambda: train(accumulated=2),
    "averaged by hand": lambda: train(around=True, before_step=lambda _, model: void(sync_gradients(model))),
    "around the wrapper": lambda: train(around=True),
    "around, and only the module is guarded": lambda: train(around=True, wrapped=False),
    "clipped on one rank": lambda: train(before_step=clipped_alone),
    "weights written on one rank": lambda: train(after_step=shifted),
    # last: the ranks find each other's sums by the number of the guard, and here one rank has one more
    "one rank alone": lambda: train(guarding=dist.get_rank() == 0),
}


def void(_: object) -> None:
    """Return nothing."""


if __name__ == "__main__":
    run_cases(CASES, sys.argv[1], SIZE)
