"""Real ranks that train wrapped models, for `test_ddp`."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from ckpt_surgery import SurgeryWarning, wrap_blocks
from tests.rank_cases import run_cases
from tests.zoo.ddp_models import SIZE, STEPS, Run, released, train


class TowerTwice(nn.Module):
    """A stack that runs twice in a step, like a vision tower for images and for videos."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(AttentionLike() for _ in range(3))

    def forward(self, images: Tensor, videos: Tensor) -> Tensor:
        return self.tower(images) + self.tower(videos)

    def tower(self, values: Tensor) -> Tensor:
        for layer in self.layers:
            values = layer(values)
        return values


class AttentionLike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = values + self.linear(values).tanh()
        return result


def twice() -> Run:
    torch.manual_seed(0)
    batches = [{"images": torch.randn(2, 8), "videos": torch.randn(3, 1, 8)} for _ in range(SIZE)]
    return Run(TowerTwice(), [batches] * STEPS)


def watched(make: Callable[[], Run], prepare: Callable[[nn.Module], nn.Module]) -> dict[str, Any]:
    """Train, and return the surgery's warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = train(make(), prepare)
    return {**result, "warnings": [str(w.message) for w in caught if issubclass(w.category, SurgeryWarning)]}


def in_ddp(model: nn.Module, *, before: bool = True, unused: bool = False, static: bool = False) -> nn.Module:
    """Wrap the model for reentrant checkpointing, and put it in DistributedDataParallel."""
    if before:
        wrap_blocks(model, use_reentrant=True)
    outer = DistributedDataParallel(model, find_unused_parameters=unused, static_graph=static)
    if not before:
        wrap_blocks(outer, use_reentrant=True)
    return outer


def in_fsdp(model: nn.Module, *, wrap: dict[str, Any]) -> nn.Module:
    wrap_blocks(model, **wrap)
    return shard(model)


def shard(model: nn.Module) -> nn.Module:
    """Shard every layer by itself, and the rest."""
    for layer in layers_of(model):
        fully_shard(layer)
    fully_shard(model)
    return model


def batches(run: Run) -> list[dict[str, Tensor]]:
    """Draw three that are large enough to leave the device."""
    return [
        {name: (value * scale).repeat(32, *(1,) * (value.dim() - 1)) for name, value in run.steps[0][0].items()}
        for scale in (1, 2, 3)
    ]


def accumulated(prepare: Callable[[nn.Module], nn.Module], step: Callable[[Any, Run], None]) -> dict[str, Any]:
    """Take two steps with offload and without; tell whether gradients are equal, and what was offloaded."""
    gradients: list[list[Tensor]] = []
    moved: list[int] = []
    options: tuple[dict[str, Any], ...] = OFFLOAD, {}
    for wrap in options:
        run = twice()
        surgery = wrap_blocks(run.model, **wrap)
        model = prepare(run.model)
        for _ in range(2):
            step(model, run)
        gradients.append([local(parameter.grad) for parameter in model.parameters()])
        moved.append(surgery.offloader.stats.tensors if surgery.offloader else 0)
    return {"equal": all(map(torch.equal, *gradients)), "gradients": len(gradients[0]), "moved": moved}


def local(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def ddp_step(model: Any, run: Run) -> None:
    """Run three batches of which only the last reduces gradients, with evaluations between them."""
    *first, last = batches(run)
    with model.no_sync():
        for batch in first:
            model(**batch).square().sum().backward()
            with torch.no_grad():
                run.model(**batch)
    model(**last).square().sum().backward()


def fsdp_step(model: Any, run: Run) -> None:
    """Run three forwards, an evaluation after each, then their backwards in another order."""
    losses = []
    for batch in batches(run):
        losses.append(model(**batch).square().sum())
        with torch.no_grad():
            model(**batch)
    for number in (1, 2, 0):
        losses[number].backward()


def plain_blocks_sharded_first() -> dict[str, Any]:
    """Shard plain blocks first: FSDP2 replaces their class, and they are still found as blocks."""
    model = TowerTwice()
    for layer in model.layers:
        fully_shard(layer)
    surgery = wrap_blocks(model)
    return {"checkpointed": [surgery.checkpoints(block) for stack in surgery.stacks for block in stack.blocks]}


def saving(
    prepare: Callable[[nn.Module], nn.Module], save: Any = ("attention", "matmul:2"), **options: Any
) -> dict[str, Any]:
    """Train with a policy in a wrapper; return what it kept of each block, and the products in all backwards."""
    surgeries: list[Any] = []
    ran: Counter[str] = Counter()

    def wrapped(model: nn.Module) -> nn.Module:
        outer = prepare(model)
        surgeries.append(wrap_blocks(model, save=save, **options))
        return outer

    with CountingBackward(ran):
        result = train(llama(), wrapped)
    kept = [
        {"bytes": sorted(policy.bytes.values()), "unmatched": policy.unmatched} for policy in surgeries[0].policies
    ]
    return {**result, **dict(*kept), "products": ran.total()}


_PRODUCTS = frozenset({"aten::mm", "aten::bmm"})


class CountingBackward(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types there
    """A counter of the products in backwards, recomputes included."""

    def __init__(self, ran: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ran = ran

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch._C._current_graph_task_id() >= 0:  # a backward is under way
            self._ran[func._schema.name] += func._schema.name in _PRODUCTS
        return func(*args, **(kwargs or {}))


def layers_of(model: nn.Module) -> nn.ModuleList:
    return next(module for module in model.modules() if isinstance(module, nn.ModuleList))


OFFLOAD = {"offload": "cpu"}
zamba = partial(released, "ZambaForCausalLM")
llama = partial(released, "LlamaForCausalLM")
CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "zamba wrapped after DDP": partial(watched, zamba, partial(in_ddp, before=False)),
    "llama with unused search": partial(watched, llama, partial(in_ddp, unused=True)),
    "llama with a static graph": partial(watched, llama, partial(in_ddp, static=True)),
    "tower twice": partial(watched, twice, in_ddp),
    "fsdp with offload": partial(watched, llama, partial(in_fsdp, wrap=OFFLOAD)),
    "ddp accumulated": partial(accumulated, DistributedDataParallel, ddp_step),
    "fsdp accumulated": partial(accumulated, shard, fsdp_step),
    "ddp, saving": partial(saving, DistributedDataParallel),
    "ddp, saving nothing": partial(saving, DistributedDataParallel, None),
    "fsdp, saving": partial(saving, partial(in_fsdp, wrap={})),
    "fsdp, saving on the host": partial(saving, partial(in_fsdp, wrap={}), offload="cpu", save_offload=True),
    "fsdp first, plain blocks": plain_blocks_sharded_first,
}


if __name__ == "__main__":
    import transformers

    transformers.logging.set_verbosity_error()
    run_cases(CASES, sys.argv[1], SIZE)
