"""Verification on real ranks, for `test_ranks`."""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ckpt_surgery.errors import VerifyError
from ckpt_surgery.measure import ranks
from ckpt_surgery.measure.results import MODES, QUICK_LEVELS, Mode
from ckpt_surgery.measure.verify import verify
from ckpt_surgery.torch_names import current_graph_task_id
from tests.measure import toys

PATIENCE = 20.0
"""Seconds; less only in cases where a rank waits in vain."""
LEVELS = (*QUICK_LEVELS, "ranks")
"""Without those that take the most steps; one healthy case has all."""

Case = Callable[[int], dict[str, Any]]


class Skipping(DistributedDataParallel):
    """A wrapper that on some ranks calls its module as if unwrapped."""

    ranks: tuple[int, ...]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        step: Callable[..., Any] = self.module if dist.get_rank() in self.ranks else super().forward
        return step(*args, **kwargs)


class OneRankOnly(toys.Model):
    """A model that uses one of its layers on the last rank alone."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.side = nn.Linear(toys.WIDTH, toys.WIDTH)

    def forward(self, values: Tensor) -> Any:
        result = super().forward(values)
        return result + self.side(values) if dist.get_rank() == dist.get_world_size() - 1 else result


class FailingOnRankOne(toys.Layer):
    """A block that cannot be recomputed on rank 1."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        if dist.get_rank() == 1 and current_graph_task_id() != -1:
            raise RuntimeError("the disk is full")
        return super().forward(hidden_states)


class NoisyOnRankOne(toys.Model):
    """A model that on rank 1 draws from a generator it does not hold, so that no two runs there are equal."""

    own = torch.Generator()

    def forward(self, values: Tensor) -> Any:
        noise = torch.randn(values.shape, generator=self.own, dtype=values.dtype)
        return super().forward(values + noise if dist.get_rank() == 1 else values)


def inputs(rank: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return {"values": torch.randn(toys.BATCH, toys.WIDTH, generator=generator, dtype=torch.float64)}


def judged(model: nn.Module, rank: int, **options: Any) -> dict[str, Any]:
    """Return the report as plain data, or the error."""
    options = {"levels": LEVELS, **options}
    try:
        return verify(model, inputs(rank) | options.pop("given", {}), **options).to_dict()
    except VerifyError as error:
        return {"error": str(error)}


def wrapped(rank: int, *, layers: Any = (toys.Layer, toys.Layer), whole: Any = toys.Model, **options: Any) -> Any:
    return DistributedDataParallel(toys.model_of(*layers, whole=whole), **options)


def healthy(rank: int, modes: Sequence[Mode] = MODES, levels: Any = LEVELS, **options: Any) -> dict[str, Any]:
    return judged(wrapped(rank, **options), rank, modes=modes, levels=levels)


def skipping(rank: int, on: tuple[int, ...]) -> dict[str, Any]:
    model = Skipping(toys.model_of(toys.Layer, toys.Layer))
    model.ranks = on
    return judged(model, rank)


def impatient(rank: int, case: Case) -> dict[str, Any]:
    ranks.TIMEOUT = 3.0
    try:
        return case(rank)
    finally:
        ranks.TIMEOUT = PATIENCE


def another_weight(rank: int) -> dict[str, Any]:
    model = wrapped(rank)
    if rank == 1:
        model.module.layers[0].linear.weight.data[0, 0] += 1
    return judged(model, rank)


def another_parameter(rank: int) -> dict[str, Any]:
    model = wrapped(rank)
    model.module.last.bias.requires_grad_(rank == 0)
    return judged(model, rank)


def scaled_by_a_hook(rank: int, on: Sequence[int]) -> dict[str, Any]:
    def hook(_state: object, bucket: Any) -> Any:
        buffer = bucket.buffer().div_(dist.get_world_size())

        def scale(done: torch.futures.Future[list[Tensor]]) -> Tensor:
            if rank in on:
                names = [name for p in bucket.parameters() for name, q in own.items() if q is p]
                bucket.gradients()[names.index("last.weight")].mul_(2)
            result: Tensor = done.value()[0]
            return result

        return dist.all_reduce(buffer, async_op=True).get_future().then(scale)

    model = wrapped(rank)
    own = dict(model.module.named_parameters())
    hook.__annotations__ = {}  # torch wants the types themselves there or nothing
    model.register_comm_hook(None, hook)
    return judged(model, rank)


def shared(rank: int, **options: Any) -> dict[str, Any]:
    layer = nn.Linear(toys.WIDTH, toys.WIDTH)
    return judged(wrapped(rank, layers=[partial(toys.SharingLayer, layer)] * 2, **options), rank)


def not_a_number(rank: int) -> dict[str, Any]:
    given = {"values": torch.full((toys.BATCH, toys.WIDTH), torch.nan, dtype=torch.float64)} if rank else {}
    return judged(wrapped(rank), rank, given=given)


def bare(rank: int) -> dict[str, Any]:
    return judged(toys.model_of(toys.Layer, toys.Layer), rank)


def alone(rank: int) -> dict[str, Any]:
    """Verify on one rank only, without comparing ranks."""
    model = wrapped(rank)
    return judged(model, rank, levels=["set", "values"]) if rank == 1 else {}


def one_is_missing(rank: int) -> dict[str, Any]:
    """Verify while the other ranks never come. Run this case last: it promises nothing for after it."""
    ranks.TIMEOUT = 0.5
    model = wrapped(rank)
    return judged(model, rank) if rank == 0 else {}


def left_as_found(rank: int, **options: Any) -> dict[str, Any]:
    """Train a step before and after, with a verification between them and without."""

    def train(*, verified: bool) -> list[Any]:
        model = wrapped(rank, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(rank)
        gathered: list[Any] = []
        for step in range(3):
            model(**inputs(rank)).sum().backward()
            before = {name: value for name, value in vars(model).items() if name != "reducer"}
            gradients = [p.grad.clone() for p in model.parameters()]
            gathered += [gradient.tolist() for gradient in gradients]
            if verified and step < 2:
                assert judged(model, rank, levels="all")["status"] == "ok"
                assert all(torch.equal(p.grad, kept) for p, kept in zip(model.parameters(), gradients, strict=True))
                assert vars(model).keys() - {"reducer"} == before.keys()
                assert all(vars(model)[name] is value for name, value in before.items() if name != "_backward_hooks")
            optimizer.step()
            optimizer.zero_grad()
        return gathered

    return {"same": train(verified=False) == train(verified=True)}


CASES: dict[int, dict[str, Case]] = {
    2: {
        "healthy": partial(healthy, levels="all"),
        "bucket views": partial(healthy, gradient_as_bucket_view=True),
        "static graph": partial(healthy, static_graph=True),
        "all skip": partial(skipping, on=(0, 1)),
        "one skips": partial(impatient, case=partial(skipping, on=(1,))),
        "another weight": another_weight,
        "another parameter": another_parameter,
        "scaled on both": partial(scaled_by_a_hook, on=(0, 1)),
        "one rank only": partial(healthy, whole=OneRankOnly, find_unused_parameters=True),
        "one rank only, not looked for": partial(
            impatient, case=partial(healthy, whole=OneRankOnly, modes=["non_reentrant"])
        ),
        "shared": shared,
        "shared, static graph": partial(shared, static_graph=True),
        "fails on rank 1": partial(healthy, layers=(FailingOnRankOne, toys.Layer)),
        "forgetting": partial(healthy, layers=(toys.ForgettingLayer, toys.Layer)),
        "irreproducible on rank 1": partial(healthy, whole=NoisyOnRankOne),
        "not a number": not_a_number,
        "bare": bare,
        "alone": alone,
        "left as found": left_as_found,
        "left as found, bucket views": partial(left_as_found, gradient_as_bucket_view=True),
        "one is missing": one_is_missing,
    },
    4: {
        "healthy": healthy,
        "scaled": partial(scaled_by_a_hook, on=(2,)),
    },
}


def run_rank(rank: int, size: int, meeting: str, result: str) -> None:
    """Run all cases for this number of ranks on one of them."""
    torch.set_num_threads(1)
    ranks.TIMEOUT = PATIENCE
    store = f"file://{meeting}-{size}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size, timeout=timedelta(seconds=30))
    results = {name: case(rank) for name, case in CASES[size].items()}
    Path(f"{result}-{size}-{rank}").write_text(json.dumps(results), encoding="utf-8")
    os._exit(0)  # a group that a rank never came to cannot be torn down in order


def main(result: str) -> int:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    gc.freeze()  # so that a collection, of which the level "ranks" makes one a mode, sees only objects of its rank
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        context = mp.get_context("fork")
        started = [
            context.Process(target=run_rank, args=(rank, size, meeting, result))
            for size in CASES
            for rank in range(size)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join()
    return max(process.exitcode or 0 for process in started)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
