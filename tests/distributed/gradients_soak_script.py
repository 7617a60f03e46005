"""Four real ranks that train for long, each step with other branches on each rank: what they found, as JSON."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ckpt_surgery.distributed.gradients import gradients_in_sync, ranks_of, sync_gradients
from ckpt_surgery.measure.ranks import digest
from tests.rank_cases import run_cases

SIZE = 4
STEPS = 300
COMPARED = 20
"""So many steps lie between two whose gradients are compared with means of all that the ranks have."""

Optimizer = Callable[..., torch.optim.Optimizer]


class Branches(nn.Module):
    """Five branches of one to four parameters each, twelve in all; a step runs some of them, or none."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [
                nn.Linear(8, 8),
                nn.Linear(8, 8, bias=False),
                nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 8, bias=False)),
                nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)),
                nn.Linear(8, 8),
            ]
        )

    def forward(self, rows: Tensor, chosen: list[int]) -> Tensor:
        for index in chosen:
            rows = rows + self.branches[index](rows).tanh()
        return rows


def train(steps: int, optimizer: Optimizer, *, synced: bool) -> dict[str, Any]:
    """Train, and count: steps in which this rank lacked gradients, the steps with unequal weights or gradients."""
    torch.manual_seed(0)
    model, choice = Branches(), random.Random(dist.get_rank())
    generator = torch.Generator().manual_seed(dist.get_rank())
    update = optimizer(model.parameters())
    result: dict[str, Any] = {"lacked": 0, "created": 0, "collectives": 0, "unequal": 0, "unsynced": 0, "worst": 0.0}
    for step in range(steps):
        update.zero_grad()
        chosen = [index for index in range(len(model.branches)) if choice.random() < 0.4]
        if chosen:
            loss = model(torch.randn(4, 8, generator=generator), chosen).square().mean()
            loss.backward()
        result["lacked"] += any(p.grad is None for p in model.parameters())
        expected = means(model) if step % COMPARED == 0 else None
        if synced:
            stats = sync_gradients(model)
            result["created"] += stats.created
            result["collectives"] += stats.collectives
        if expected is not None:
            result["unsynced"] += bool(gradients_in_sync(model))
            result["worst"] = max(result["worst"], apart(model, expected))
        update.step()
        result["unequal"] += not equal_weights(model)
    result["moved"] = digest(flat(model)) != digest(flat(fresh()))
    return result


def fresh() -> nn.Module:
    torch.manual_seed(0)
    return Branches()


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def equal_weights(model: nn.Module) -> bool:
    same, _ = ranks_of(None, "soak").agree(int(digest(flat(model))[:15], 16), False, torch.device("cpu"))
    return same


def means(model: nn.Module) -> list[Tensor | None]:
    """By another way: every rank's gradients as objects, added up here."""
    gathered: list[Any] = [None] * SIZE
    dist.all_gather_object(gathered, [p.grad for p in model.parameters()])
    gradients: list[Tensor | None] = []
    for ranks in zip(*gathered, strict=True):
        held = [gradient.double() for gradient in ranks if gradient is not None]
        gradients.append(torch.stack(held).sum(0) / SIZE if held else None)
    return gradients


def apart(model: nn.Module, expected: list[Tensor | None]) -> float:
    """The largest difference; infinite where one has a gradient that the other lacks."""
    worst = 0.0
    for parameter, mean in zip(model.parameters(), expected, strict=True):
        if parameter.grad is None or mean is None:
            worst = max(worst, 0.0 if parameter.grad is mean else float("inf"))
        else:
            worst = max(worst, float((parameter.grad.double() - mean).abs().max()))
    return worst


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "AdamW": partial(train, STEPS, partial(torch.optim.AdamW, lr=1e-3), synced=True),
    "SGD": partial(train, STEPS // 5, partial(torch.optim.SGD, lr=1e-2), synced=True),
    "not synchronised": partial(train, COMPARED + 1, partial(torch.optim.SGD, lr=1e-2), synced=False),
}


if __name__ == "__main__":
    run_cases(CASES, sys.argv[1], SIZE)
