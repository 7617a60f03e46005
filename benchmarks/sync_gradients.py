"""What does `sync_gradients` cost, next to a loop that calls all_reduce for every parameter? On two gloo ranks here.

Both run in turns in one process for each rank, on the same gradients: 500 small ones, and a few large ones. Also the
memory that each needs besides the gradients, and how far apart their results are. Prints a table of figures and
targets; writes json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.figures import Figure, Target, document, finish, lacking, machine, option_parser, plain_table
from benchmarks.stopwatch import high_water

if TYPE_CHECKING:
    from torch import Tensor, nn

MEGABYTE = 10**6
RANKS = 2
LOOP, OURS = "a loop of all_reduce", "sync_gradients"
_WARM_UP = 2
_SECONDS = 120
"""A rank waits no longer for the other one."""


@dataclass(frozen=True, slots=True)
class Part:
    """Float32 parameters of one shape, and what has to hold for them. `weighed`: the memory counts, not the time."""

    name: str
    count: int
    shape: tuple[int, int]
    faster: Target | None = None
    collectives: Target | None = None
    extra: Target | None = None
    weighed: bool = False


PARTS = (
    Part("500 of 64x16", 500, (64, 16), faster=Target(10.0, at_least=True), collectives=Target(5.0)),
    Part("4 of 2048x2048", 4, (2048, 2048), faster=Target(0.8, at_least=True)),
    Part("800 of 256x256", 800, (256, 256), weighed=True, extra=Target(80.0)),
)
"""The last has 210 MB of gradients, each small enough to travel in a bucket of 26 MB. The extra memory is one such
bucket, and what gloo itself takes for it."""
CLOSE = Target(1e-6)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one way cost the first rank: seconds of each round, collectives of one, bytes above what was there."""

    seconds: tuple[float, ...]
    collectives: int
    extra: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 0; 1 where a target is missed; 2 where it could not run."""
    options = _options(arguments)
    if lacking("sync_gradients", "torch"):
        return 2
    measured: list[Figure] = []
    for part in PARTS:
        print(f"sync_gradients: {part.name}", file=sys.stderr, flush=True)
        measured += figures(part, *measure(part, options.rounds))
    shown = [plain_table(f"averaging gradients on {RANKS} gloo ranks: {machine()}", measured)]
    return finish("sync_gradients", measured, document(measured, ranks=RANKS), options.out, shown)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = option_parser("sync_gradients", __doc__)
    parser.add_argument(
        "--rounds", type=int, default=15, metavar="N", help="timed rounds; the median counts (default: 15)"
    )
    return parser.parse_args(arguments)


def measure(part: Part, rounds: int) -> tuple[dict[str, Cost], float]:
    """The cost of each way, and the largest difference between their results, on two new processes.

    Where memory counts, each way has two processes of its own: what one has claimed, the next does not claim again.
    """
    if not part.weighed:
        return _processes(part, (LOOP, OURS), rounds)
    apart = [_processes(part, (way,), 1) for way in (LOOP, OURS)]
    return {way: cost for costs, _ in apart for way, cost in costs.items()}, 0.0


def _processes(part: Part, ways: Sequence[str], rounds: int) -> tuple[dict[str, Cost], float]:
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder:
        ready = (part, tuple(ways), rounds, folder)
        mp.start_processes(_rank, ready, RANKS, start_method="spawn")  # type: ignore[attr-defined,no-untyped-call]
        result = json.loads((Path(folder) / "result").read_text(encoding="utf-8"))
    costs = {way: Cost(tuple(cost["seconds"]), cost["collectives"], cost["extra"]) for way, cost in result[0].items()}
    return costs, result[1]


def _rank(rank: int, part: Part, ways: Sequence[str], rounds: int, folder: str) -> None:
    """One rank of the two; the first writes down what it measured."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    meet = f"file://{folder}/meet"
    dist.init_process_group("gloo", meet, timeout=timedelta(seconds=_SECONDS), rank=rank, world_size=RANKS)
    result = _turns(part, ways, rounds, _ways())
    if rank == 0:
        (Path(folder) / "result").write_text(json.dumps(result), encoding="utf-8")
    dist.barrier()
    os._exit(0)  # threads of gloo may end a process that tears itself down with SIGABRT


def _ways() -> Mapping[str, Callable[[nn.Module], object]]:
    import torch.distributed as dist

    from ckpt_surgery.distributed.gradients import sync_gradients

    def loop(model: nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= RANKS

    return {LOOP: loop, OURS: sync_gradients}


def _turns(
    part: Part, ways: Sequence[str], rounds: int, calls: Mapping[str, Callable[[nn.Module], object]]
) -> tuple[dict[str, Any], float]:
    """Every way in every round, from the same gradients; the last ones are compared."""
    import torch
    import torch.distributed as dist
    from torch import nn

    generator = torch.Generator().manual_seed(dist.get_rank())
    model = nn.ParameterList(nn.Parameter(torch.zeros(part.shape)) for _ in range(part.count))
    given = [torch.randn(part.shape, generator=generator) for _ in model]
    for parameter in model:
        parameter.grad = torch.empty_like(parameter)
    measured: dict[str, Any] = {way: {"seconds": [], "collectives": 0, "extra": 0} for way in ways}
    results: dict[str, list[Tensor]] = {}
    for step in range(rounds if part.weighed else rounds + _WARM_UP):
        for way in ways:
            _give(model, given)
            before = high_water(os.getpid())
            seconds, collectives = _timed(calls[way], model)
            extra = high_water(os.getpid()) - before
            if step >= _WARM_UP or part.weighed:
                measured[way]["seconds"].append(seconds)
            measured[way] |= {"collectives": collectives, "extra": max(extra, measured[way]["extra"])}
            if not part.weighed:
                results[way] = [parameter.grad.clone() for parameter in model]
    difference = max(
        (float((one - other).abs().max()) for one, other in zip(*results.values(), strict=True)) if results else [0.0]
    )
    return measured, difference


def _give(model: nn.ParameterList, given: Sequence[Tensor]) -> None:
    for parameter, gradient in zip(model, given, strict=True):
        parameter.grad.copy_(gradient)


def _timed(call: Callable[[nn.Module], object], model: nn.Module) -> tuple[float, int]:
    """The seconds of a call that both ranks begin together, and the collectives in it."""
    import torch.distributed as dist

    collectives, original = 0, dist.all_reduce

    def counting(*args: Any, **kwargs: Any) -> Any:
        nonlocal collectives
        collectives += 1
        return original(*args, **kwargs)

    setattr(dist, "all_reduce", counting)  # noqa: B010 - a module takes no other function by assignment
    try:
        dist.barrier()
        start = perf_counter()
        call(model)
        return perf_counter() - start, collectives
    finally:
        setattr(dist, "all_reduce", original)  # noqa: B010


def figures(part: Part, costs: Mapping[str, Cost], difference: float) -> list[Figure]:
    """What a part shows. A ratio is taken within each round: other load hits both alike."""
    if part.weighed:
        return [
            Figure(f"{part.name}: gradients", (4 * part.count * part.shape[0] * part.shape[1] / MEGABYTE,), "MB"),
            Figure(f"{part.name}: extra memory, {LOOP}", (costs[LOOP].extra / MEGABYTE,), "MB"),
            Figure(f"{part.name}: extra memory, {OURS}", (costs[OURS].extra / MEGABYTE,), "MB", part.extra),
        ]
    pairs = zip(costs[LOOP].seconds, costs[OURS].seconds, strict=True)
    return [
        *(Figure(f"{part.name}: {way}", tuple(1000 * s for s in cost.seconds), "ms") for way, cost in costs.items()),
        Figure(f"{part.name}: {LOOP} / {OURS}", tuple(one / other for one, other in pairs), "x", part.faster),
        Figure(f"{part.name}: collectives, {LOOP}", (float(costs[LOOP].collectives),), ""),
        Figure(f"{part.name}: collectives, {OURS}", (float(costs[OURS].collectives),), "", part.collectives),
        Figure(f"{part.name}: largest difference between the two", (difference,), "", CLOSE),
    ]


if __name__ == "__main__":
    sys.exit(main())
