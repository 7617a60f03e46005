"""Trainings on two real ranks with batches of different lengths, for `test_fastest`."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ckpt_surgery import wrap_blocks
from ckpt_surgery.planning.devices import Device
from ckpt_surgery.planning.fastest import FastestWrap
from tests.rank_cases import Cases, run_cases
from tests.zoo.tiny_models import WORDS, llama

SIZE = 2
SLOW = Device("slow", 1e7, 1e12, 10**12, 1e12, "made up")
"""A device on which tiny models take seconds."""


def batch(length: int = 256) -> dict[str, torch.Tensor]:
    ids = torch.randint(1, WORDS, (1, length), generator=torch.Generator().manual_seed(length))
    return {"input_ids": ids, "labels": ids}


def train(*, wrapper: bool = True, known: int = SIZE) -> dict[str, Any]:
    """Train a step, with figures on the first `known` ranks; return the choice, and whether gradients are right."""
    inputs = batch((8, 256)[dist.get_rank()])
    gradients = []
    for wrap in (False, True):
        model = llama(2)
        chooses = FastestWrap(wrap_blocks(model), SLOW if dist.get_rank() < known else None) if wrap else None
        called: Any = DistributedDataParallel(model) if wrapper else model
        called(**inputs).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    choice = chooses.choice if chooses else None
    equal = all(map(torch.equal, *gradients))
    return {"equal": equal, "choice": choice and [choice.way, choice.problem, *(str(cost) for cost in choice.costs)]}


CASES: Cases = {
    "lengths": train,
    "one rank knows no figures": partial(train, known=1),
    "no wrapper": partial(train, wrapper=False),
}

if __name__ == "__main__":
    run_cases(CASES, sys.argv[1], SIZE)
