"""A guard under FSDP2 on two ranks, for `test_sharded`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import peft
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from ckpt_surgery import guard, wrap_blocks
from ckpt_surgery.guarding.faults import GuardFaultKind
from tests.rank_cases import run_cases, whole
from tests.zoo.tiny_models import layers_of, llama, tokens

SIZE = 2
LAYERS = 2

Result = dict[str, Any]


def sharded(model: Any, precision: torch.dtype | None = None) -> None:
    """Shard each layer, and the MLP by itself in layers that ask for it."""
    mesh = init_device_mesh("cpu", (SIZE,))
    policy = MixedPrecisionPolicy(param_dtype=precision)
    layers: dict[str, Any] = layers_of(model)
    for layer in layers.values():
        if hasattr(layer, "split"):
            fully_shard(layer.mlp, mesh=mesh, mp_policy=policy)
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def train(model: Any, accumulated: bool = False) -> list[float]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.01)
    losses = []
    for step in range(LAYERS + 1):
        stepping = not accumulated or step % 2 == 1
        model.set_requires_gradient_sync(stepping)
        loss = model(**tokens()).loss
        loss.backward()
        if not stepping:
            continue
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 2:  # where it gathers weights anew, what it gathered before does not show
            with torch.no_grad():
                model(**tokens())
    return losses


def plain() -> Any:
    return llama(LAYERS, use_cache=False)


def split() -> Any:
    """Shard the MLP of each layer by itself, so that it gathers its weights as it begins."""
    model = plain()
    for layer in model.model.layers:
        layer.split = True
    return model


def adapted() -> Any:
    """Add adapters to the queries and values of each layer and train them alone."""
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = plain()
    torch.manual_seed(1)
    return peft.get_peft_model(model, config).double()


def result_of(
    order: Callable[[Any], Any] | None,
    precision: torch.dtype | None = None,
    accumulated: bool = False,
    build: Callable[[], Any] = plain,
    guarded_first: bool = False,
) -> Result:
    """Compare a guarded training of a sharded model with one without checkpointing and guard."""
    bare, model = build(), build()
    sharded(bare, precision)
    watching = guard(model, on_fault="collect", patience=LAYERS) if guarded_first else None
    surgery = order(model) if order else None
    if surgery is None:
        sharded(model, precision)
        model.gradient_checkpointing_enable({"use_reentrant": False})
    watching = watching or guard(model, on_fault="collect", patience=LAYERS)
    losses, expected = train(model, accumulated), train(bare, accumulated)
    report = watching.report()
    watching.remove()
    states: list[dict[str, Any]] = [{n: whole(t) for n, t in m.state_dict().items()} for m in (model, bare)]
    return {
        "losses": losses == expected,
        "names": list(states[0]) == list(states[1]),
        "weights": all(torch.equal(states[0][name], states[1][name]) for name in states[1]),
        "counts": sorted({row.counts or (0, 0) for row in report.blocks}),
        "proofs": [f"{row.proof.status} {row.proof.detail}".strip() for row in report.blocks],
        "compared": [row.proof.compared for row in report.blocks],
        "faults": [str(fault) for fault in report.faults],
    }


def broken(build: Callable[[], Any] = plain) -> Result:
    """Add a layer that computes something else in each run, and an unused parameter."""
    model, factors = build(), itertools.count(1)
    layers: dict[str, Any] = layers_of(model)
    mlp = layers["1"].mlp
    vars(mlp)["forward"] = lambda hidden: type(mlp).forward(mlp, hidden) * next(factors)
    layers["0"].unused = torch.nn.Linear(4, 4).double()
    sharded(model)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    with guard(model, on_fault="collect", patience=LAYERS) as watching:
        train(model)
        report = watching.report()
    return {
        "proofs": [str(row.proof.status) for row in report.blocks],
        "wrong": sorted(report.blocks[1].proof.errors),
        "untrained": [fault.subjects for fault in report.faults if fault.kind is GuardFaultKind.UNTRAINED],
    }


def before(model: Any) -> Any:
    surgery = wrap_blocks(model)
    sharded(model)
    return surgery


def after(model: Any) -> Any:
    sharded(model)
    return wrap_blocks(model)


CASES: dict[str, Callable[[], Result]] = {
    "its own": lambda: result_of(None),
    "before": lambda: result_of(before),
    "before, guarded first": lambda: result_of(before, guarded_first=True),
    "after": lambda: result_of(after),
    "accumulated": lambda: result_of(None, accumulated=True),
    "adapters, before": lambda: result_of(before, build=adapted),
    "adapters in bfloat16": lambda: result_of(None, torch.bfloat16, build=adapted),
}
BROKEN: dict[str, Callable[[], Result]] = {
    "broken": broken,
    "broken with adapters": lambda: broken(build=adapted),
}
SPLIT: dict[str, Callable[[], Result]] = {
    "split": lambda: result_of(None, build=split),
    "split, after": lambda: result_of(after, build=split),
}
ALL_CASES = {**CASES, **BROKEN, **SPLIT}


if __name__ == "__main__":
    run_cases(ALL_CASES, sys.argv[1], SIZE)
