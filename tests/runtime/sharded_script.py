"""FSDP2 on two ranks, with a surgery before and after `fully_shard`: what each rank found, as JSON.

Started as a process for each rank, with the rank, the file to meet at and the file for the result.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from ckpt_surgery import wrap_blocks
from tests.runtime.surgery_toys import Step, differences, step
from tests.runtime.tiny_models import layers_of, llama, tokens

Found = dict[str, Any]


def sharded(model: Any) -> None:
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def whole(gradient: Tensor | None) -> Tensor | None:
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def trained(model: nn.Module) -> Step:
    found = step(model, tokens(), blocks=layers_of(model))
    return Step(found.loss, {name: whole(g) for name, g in found.gradients.items()}, found.buffers, found.entries)


def found_with(order: Callable[[Any], Any], *, undone: bool = False) -> Found:
    """A step of a sharded model next to one of the model on its own."""
    model = llama(2)
    surgery = order(model)
    if undone:
        surgery.undo()
    seen, wanted = trained(model), trained(llama(2))
    return {
        "differences": differences(seen, wanted),
        "entries": sorted(set(seen.entries.values())),
        "kinds": sorted({type(layer).__name__ for layer in model.model.layers}),
        "names": [name for name, _ in model.named_parameters()] == [name for name, _ in llama(2).named_parameters()],
    }


def before(model: Any, **options: Any) -> Any:
    surgery = wrap_blocks(model, **options)
    sharded(model)
    return surgery


def after(model: Any, **options: Any) -> Any:
    sharded(model)
    return wrap_blocks(model, **options)


CASES: dict[str, Callable[[], Found]] = {
    "before": lambda: found_with(before),
    "after": lambda: found_with(after),
    "before, reentrant": lambda: found_with(lambda model: before(model, use_reentrant=True)),
    "after, reentrant": lambda: found_with(lambda model: after(model, use_reentrant=True)),
    "before, undone": lambda: found_with(before, undone=True),
    "after, undone": lambda: found_with(after, undone=True),
}


def main(rank: int, meeting: str, result: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    found = {name: case() for name, case in CASES.items()}
    Path(result).write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    os._exit(0)  # nothing is torn down that another rank may still need


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
