"""Run cases on several real ranks of one machine: fork the ranks, run every case on each, and collect the results.

A script beside the tests defines its cases and calls `run_cases`, and a fixture starts it with `case_results`. The
ranks meet on 127.0.0.1; each result is JSON.
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
Results = Mapping[str, list[Any]]
"""For each case, the result of each rank in order."""

PATIENCE = 240


def case_results(script: str, folder: Path, size: int, **environment: str) -> Results:
    """Run `script` in a separate process and read the results of its `size` ranks. Raises as `run_ranks`."""
    place = run_ranks(script, folder, PATIENCE, **environment)
    by_rank = [json.loads(Path(f"{place}-{rank}").read_text(encoding="utf-8")) for rank in range(size)]
    return {case: [results[case] for results in by_rank] for case in by_rank[0]}


def run_cases(cases: Cases, place: str, size: int, seconds: float = 60) -> None:
    """Run every case on `size` gloo ranks, which wait for each other for at most `seconds`.

    A case returns JSON data; rank r writes the results of all cases to the file `{place}-{r}`. A case that raises ends
    the run. Garbage is collected after each case.
    """
    gc.freeze()  # so that a collection on a rank sees only objects of that rank and copies no memory of this process
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
    results = {}
    for name, case in cases.items():
        results[name] = case()
        gc.collect()  # a reducer must not outlive its process group
    Path(f"{place}-{index}").write_text(json.dumps(results), encoding="utf-8")
    dist.destroy_process_group()


@contextmanager
def own_group(seconds: float) -> Iterator[dist.ProcessGroup]:
    """Make a group of all ranks that may break without breaking others; waits last `seconds` at most."""
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))
    try:
        yield group
    finally:
        dist.destroy_process_group(group)


def whole(gradient: Tensor | None) -> Tensor | None:
    """Return the full gradient, gathered from shards if need be."""
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
