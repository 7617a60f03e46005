"""FSDP2 on two ranks, with a surgery before and after `fully_shard`, for `test_preserved`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import inf
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ckpt_surgery import long_context, wrap_blocks
from tests.rank_cases import run_cases, whole
from tests.zoo.surgery_toys import Step, differences, step
from tests.zoo.tiny_models import layers_of, llama, tokens

SIZE = 2

Result = dict[str, Any]


def sharded(model: Any) -> None:
    mesh = init_device_mesh("cpu", (SIZE,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def trained(model: nn.Module) -> Step:
    record = step(model, tokens(), blocks=layers_of(model))
    return Step(record.loss, {name: whole(g) for name, g in record.gradients.items()}, record.buffers, record.entries)


def result_of(order: Callable[[Any], Any], *, undone: bool = False) -> Result:
    """Compare a step of a sharded model with one of the plain model."""
    model = llama(2)
    surgery = order(model)
    if undone:
        surgery.undo()
    seen, expected = trained(model), trained(llama(2))
    return {
        "differences": differences(seen, expected),
        "entries": sorted(set(seen.entries.values())),
        "kinds": sorted({type(layer).__name__ for layer in model.model.layers}),
        "names": [name for name, _ in model.named_parameters()] == [name for name, _ in llama(2).named_parameters()],
    }


def after_parts(model: Any) -> Any:
    """Shard the MLP of each layer by itself, so that it gathers its weights on entry."""
    for layer in model.model.layers:
        fully_shard(layer.mlp, mesh=init_device_mesh("cpu", (SIZE,)))
    return after(model)


def before(model: Any, **options: Any) -> Any:
    surgery = wrap_blocks(model, **options)
    sharded(model)
    return surgery


def after(model: Any, **options: Any) -> Any:
    sharded(model)
    return wrap_blocks(model, **options)


def _apart(one: Tensor | None, other: Tensor | None) -> float:
    return inf if one is None or other is None else float((one - other).abs().max())


def long_result(*, first: bool, head: bool) -> Result:
    """Take a step after `long_context`, before or after `fully_shard`; with `head` the head is sharded by itself."""
    model = llama(2)
    context = long_context(model) if first else None
    if head:
        fully_shard(model.lm_head, mesh=init_device_mesh("cpu", (SIZE,)))
    sharded(model)
    context = context or long_context(model)
    seen, expected = trained(model), trained(llama(2))
    return {
        "loss": abs(seen.loss - expected.loss),
        "apart": max(_apart(seen.gradients[name], gradient) for name, gradient in expected.gradients.items()),
        "made_logits": context.made_logits,
        "said": str(context),
    }


CASES: dict[str, Callable[[], Result]] = {
    "before": lambda: result_of(before),
    "after": lambda: result_of(after),
    "after, parts": lambda: result_of(after_parts),
    "before, undone": lambda: result_of(before, undone=True),
    "after, undone": lambda: result_of(after, undone=True),
    "long, before": lambda: long_result(first=True, head=False),
    "long, after": lambda: long_result(first=False, head=False),
    "long, head before": lambda: long_result(first=True, head=True),
    "long, head after": lambda: long_result(first=False, head=True),
}


if __name__ == "__main__":
    run_cases(CASES, sys.argv[1], SIZE)
