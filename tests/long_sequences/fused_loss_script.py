"""Two ranks that train with the fused loss, for `test_fused_loss_places`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ckpt_surgery.long_sequences.fused_loss import fused_linear_cross_entropy
from tests.rank_cases import run_cases, whole

SIZE = 2
STEPS = 2
VOCABULARY = 23


class Speaker(nn.Module):
    """An embedding, a block and a head, tied to the embedding or not; the forward ends in the loss."""

    def __init__(self, *, tied: bool, checkpointed: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.block = nn.Linear(8, 8)
        self.head = nn.Linear(8, VOCABULARY, bias=not tied)
        if tied:
            self.head.weight = self.embedding.weight
        self.checkpointed = checkpointed

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        states = self.states(ids)
        if self.checkpointed:
            return checkpoint(self.loss, states, labels, use_reentrant=False)  # type: ignore[no-any-return]
        return self.loss(states, labels)

    def states(self, ids: Tensor) -> Tensor:
        values = self.embedding(ids)
        result: Tensor = values + self.block(values).tanh()
        return result

    def loss(self, states: Tensor, labels: Tensor) -> Tensor:
        return fused_linear_cross_entropy(states, self.head.weight, labels, self.head.bias, chunk_size=3)


class StatesOnly(nn.Module):
    """A model that returns its states and leaves the head to the loss outside."""

    def __init__(self, speaker: Speaker) -> None:
        super().__init__()
        self.speaker = speaker

    def forward(self, ids: Tensor) -> Tensor:
        return self.speaker.states(ids)


def batch(rank: int, *, silent: int | None) -> tuple[Tensor, Tensor]:
    """Draw other ids and another number of labels on each rank; none counts on rank `silent`."""
    random = torch.Generator().manual_seed(rank)
    ids = torch.randint(0, VOCABULARY, (2, 7), generator=random)
    labels = torch.randint(0, VOCABULARY, (2, 7), generator=random)
    labels[:, : 2 + 3 * rank] = -100
    return ids, torch.full_like(labels, -100) if rank == silent else labels


def plain_loss(speaker: Speaker, ids: Tensor, labels: Tensor) -> Tensor:
    logits = speaker.head(speaker.states(ids)).flatten(0, 1)
    return F.cross_entropy(logits, labels.flatten(), reduction="sum") / (labels != -100).sum().clamp(min=1)


def wanted(speaker: Speaker, silent: int | None) -> dict[str, Tensor]:
    """Return the gradients of the plain loss in one process, averaged over the ranks' batches."""
    loss = sum(plain_loss(speaker, *batch(rank, silent=silent)) for rank in range(SIZE)) / SIZE
    parameters = dict(speaker.named_parameters())
    return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))  # type: ignore[arg-type]


def compare(speaker: Speaker, expected: dict[str, Tensor], step: Callable[[], Tensor]) -> dict[str, Any]:
    result: dict[str, Any] = {"error": "", "difference": -1.0}
    try:
        for _ in range(STEPS):
            speaker.zero_grad()
            step().backward()  # type: ignore[no-untyped-call]
    except (RuntimeError, TypeError) as error:
        return {**result, "error": " ".join(str(error).split())}
    actual = {name: whole(parameter.grad) for name, parameter in speaker.named_parameters()}
    result["difference"] = max(
        float("inf") if gradient is None else float((gradient - expected[name]).abs().max())
        for name, gradient in actual.items()
    )
    return result


def inside(*, tied: bool, unused: bool, silent: int | None = None, checkpointed: bool = False) -> dict[str, Any]:
    speaker = Speaker(tied=tied, checkpointed=checkpointed)
    expected = wanted(speaker, silent)
    outer = DistributedDataParallel(speaker, find_unused_parameters=unused)
    mine = batch(dist.get_rank(), silent=silent)
    return compare(speaker, expected, lambda: outer(*mine))


def sharded() -> dict[str, Any]:
    """Shard the module with FSDP2, so that the head is whole in its forward."""
    speaker = Speaker(tied=False, checkpointed=False)
    expected = wanted(speaker, None)
    fully_shard(speaker)
    mine = batch(dist.get_rank(), silent=None)
    return compare(speaker, expected, lambda: speaker(*mine))


def sharded_head(gather: Callable[[DTensor], Tensor]) -> dict[str, Any]:
    """Shard the head by itself, and compute the loss from what its weight gives."""
    speaker = Speaker(tied=False, checkpointed=False)
    expected = wanted(speaker, None)
    for part in (speaker.embedding, speaker.block, speaker.head):
        fully_shard(part)
    ids, labels = batch(dist.get_rank(), silent=None)
    weight, bias = (cast(DTensor, tensor) for tensor in (speaker.head.weight, speaker.head.bias))
    return compare(
        speaker,
        expected,
        lambda: fused_linear_cross_entropy(speaker.states(ids), gather(weight), labels, gather(bias)),
    )


def averaged(shard: DTensor) -> Tensor:
    return shard.full_tensor(grad_placements=[Partial("avg")])


def alone() -> dict[str, Any]:
    """Train without DistributedDataParallel: each rank keeps the gradients of its own labels."""
    speaker = Speaker(tied=False, checkpointed=False)
    mine = batch(dist.get_rank(), silent=None)
    return compare(speaker, wanted(speaker, None), lambda: speaker(*mine))


def outside() -> dict[str, Any]:
    speaker = Speaker(tied=False, checkpointed=False)
    expected = wanted(speaker, None)
    outer = DistributedDataParallel(StatesOnly(speaker), find_unused_parameters=True)
    ids, labels = batch(dist.get_rank(), silent=None)
    return compare(speaker, expected, lambda: speaker.loss(outer(ids), labels))


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "tied": partial(inside, tied=True, unused=False),
    "own head, unused looked for": partial(inside, tied=False, unused=True),
    "one rank without labels": partial(inside, tied=True, unused=True, silent=1),
    "loss in a checkpoint": partial(inside, tied=True, unused=False, checkpointed=True),
    "loss outside": outside,
    "sharded": sharded,
    "sharded head": partial(sharded_head, lambda shard: shard),
    "sharded head, gathered": partial(sharded_head, DTensor.full_tensor),
    "sharded head, gathered and averaged": partial(sharded_head, averaged),
    "alone": alone,
}


if __name__ == "__main__":
    run_cases(CASES, sys.argv[1], SIZE)
