"""Cases on several real ranks of one machine: forks the ranks, runs every case on each, keeps what they found.

A script beside the tests names its cases and calls `run_cases`; a fixture starts the script with `cases_found`.
"""

from __future__ import annotations

import gc
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.tensor import DTensor

from tests.processes import run_ranks

Cases = Mapping[str, Callable[[], Any]]
Found = Mapping[str, list[Any]]
"""What each rank found, by case; the ranks in order."""

PATIENCE = 240


def cases_found(script: str, folder: Path, size: int, **environment: str) -> Found:
    """Start `script` in a process of its own and read what its `size` ranks found. Raises as `run_ranks`."""
    place = run_ranks(script, folder, PATIENCE, **environment)
    told = [json.loads(Path(f"{place}-{rank}").read_text(encoding="utf-8")) for rank in range(size)]
    return {case: [rank[case] for rank in told] for case in told[0]}


def run_cases(cases: Cases, place: str, size: int, seconds: float = 60) -> None:
    """Run every case on `size` gloo ranks, which wait `seconds` for each other at most.

    What a case returns has to be JSON; rank r writes all of it into the file `{place}-{r}`. A case that raises ends
    everything. Whatever a case leaves is collected before the next one.
    """
    gc.freeze()  # so that a collection on a rank looks at what that rank made, and copies no memory of this process
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.start_processes(  # type: ignore[attr-defined,no-untyped-call]
        _rank, (cases, place, size, port, seconds), nprocs=size, start_method="fork"
    )


def _rank(index: int, cases: Cases, place: str, size: int, port: int, seconds: float) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=index, world_size=size, timeout=timedelta(seconds=seconds))
    told = {}
    for name, case in cases.items():
        told[name] = case()
        gc.collect()  # a reducer must not be the last to hold its process group
    Path(f"{place}-{index}").write_text(json.dumps(told), encoding="utf-8")
    dist.destroy_process_group()


@contextmanager
def own_group(seconds: float) -> Iterator[dist.ProcessGroup]:
    """A group of all ranks that may break: nobody in it waits longer than `seconds`, and the others stay whole."""
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))
    try:
        yield group
    finally:
        dist.destroy_process_group(group)


def whole(gradient: Tensor | None) -> Tensor | None:
    """A gradient, put together where the ranks hold shards of it."""
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
