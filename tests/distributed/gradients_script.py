"""Three real ranks that average and compare their gradients, for `test_gradients`."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ckpt_surgery.distributed.gradients import gradients_in_sync, sync_gradients
from ckpt_surgery.errors import DistributedError
from ckpt_surgery.runtime.tools.tensors import same_bits
from tests.rank_cases import own_group, run_cases

SIZE = 3
GROUP_SECONDS = 5
SAME: Collection[int] = range(SIZE)
COLLECTIVES = [
    name
    for name in ("all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "gather", "reduce", "scatter")
    for name in (name, f"{name}_into_tensor", f"{name}_object", f"{name}_object_list", f"{name}_single")
    if hasattr(dist, name)
]

Values = list[Any]


def bag(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> nn.ParameterList:
    """Make parameters "0", "1" and so on, of ones."""
    return nn.ParameterList(nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in shapes)


def named(*names: str) -> nn.ParameterDict:
    """Make parameters of one shape in this order."""
    model = nn.ParameterDict()
    for name in names:
        model[name] = nn.Parameter(torch.ones(2))
    return model


def value(index: int, rank: int) -> float:
    """Return a gradient that identifies its rank and parameter."""
    return 10.0 * index + rank + 1


def fill(model: nn.Module, held: Collection[int]) -> nn.Module:
    """Give only the parameters of these indices this rank's gradients."""
    for index, parameter in enumerate(model.parameters()):
        here = value(index, dist.get_rank())
        parameter.grad = torch.full_like(parameter, here) if index in held else None
    return model


def values(model: nn.Module) -> Values:
    return [None if p.grad is None else p.grad.tolist() for p in model.parameters()]


def naive(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Average gradients in the loop that people write."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= dist.get_world_size(group)


def with_naive(held: Sequence[Collection[int]]) -> dict[str, Any]:
    """Return the loop's error and the gradients. A barrier keeps the group until the last rank is done."""
    model, text = fill(bag((2,), (2,), (2,)), held[dist.get_rank()]), ""
    with own_group(GROUP_SECONDS) as group:
        try:
            naive(model, group)
        except RuntimeError as error:
            text = " ".join(str(error).split())
        dist.barrier()
    return {"error": text, "values": values(model)}


def with_ours(held: Sequence[Collection[int]]) -> Values:
    model = fill(bag((2,), (2,), (2,)), held[dist.get_rank()])
    sync_gradients(model)
    return values(model)


def overflow(dtype: torch.dtype, every: float, mean: Callable[[nn.Module], Any]) -> float:
    model = bag((4,), dtype=dtype)
    gradient = torch.full((4,), every, dtype=dtype)
    model[0].grad = gradient
    mean(model)
    return float(gradient[3])


def exact() -> Values:
    model = bag((2,), dtype=torch.float64)
    model[0].grad = torch.full((2,), dist.get_rank() + 1 + 2.0**-45, dtype=torch.float64)
    sync_gradients(model)
    return values(model)


KINDS = (torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.complex64)


def mixed() -> dict[str, Any]:
    model = nn.ParameterList(nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in (*KINDS, *KINDS))
    stats = sync_gradients(fill(model, range(10)))
    present = [p.grad for p in model.parameters() if p.grad is not None]
    return {
        "values": [gradient.real.tolist() for gradient in present],
        "dtypes": [gradient.dtype == p.dtype for gradient, p in zip(present, model.parameters(), strict=True)],
        "stats": [stats.collectives, stats.buckets, stats.parameters, stats.created, stats.bytes],
    }


def tied() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    stats = sync_gradients(fill(model, [0]))
    return {"values": values(model), "parameters": stats.parameters, "bytes": stats.bytes}


def frozen() -> dict[str, Any]:
    """Average a frozen parameter with a gradient, on which SGD steps, a trained one, and a frozen one without."""
    model = bag((2,), (2,), (2,))
    fill(model, [0, 1])
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    before = list(gradients_in_sync(model))
    sync_gradients(model)
    averaged = values(model)
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    return {"before": before, "values": averaged, "weights": [float(p.detach()[0]) for p in model]}


def strides() -> dict[str, Any]:
    """Give a parameter in channels_last a gradient in that format on two ranks, and none on another."""
    result: dict[str, Any] = {}
    for name, without in (("held", 9), ("created", 2)):
        conv = nn.Conv2d(3, 4, 2, bias=False)
        conv.weight.data = conv.weight.data.to(memory_format=torch.channels_last)
        own = (torch.arange(48.0) * (dist.get_rank() + 1)).reshape(4, 3, 2, 2)
        if dist.get_rank() != without:
            conv.weight.grad = own.to(memory_format=torch.channels_last) if dist.get_rank() else own
        sync_gradients(conv)
        gradient = conv.weight.grad
        assert gradient is not None
        total = sum(rank + 1 for rank in SAME if rank != without)
        expected = (torch.arange(48.0) * total / SIZE).reshape(4, 3, 2, 2)
        result[name] = [bool((gradient - expected).abs().max() < 1e-5), list(gradient.stride())]
    return result


def identity() -> dict[str, Any]:
    """Average a small gradient, a large one that travels alone, and two that are not contiguous."""
    model = bag((3,), (600, 600), (600, 600), (300000,))
    model[0].grad, model[1].grad = torch.ones(3), torch.ones(600, 600)
    model[2].grad = torch.arange(360000.0).reshape(600, 600).t()
    model[3].grad = torch.arange(600000.0)[::2]
    before = [(id(p.grad), p.grad.data_ptr()) for p in model]
    stats = sync_gradients(model)
    right = torch.equal(model[2].grad, torch.arange(360000.0).reshape(600, 600).t())
    right &= torch.equal(model[3].grad, torch.arange(600000.0)[::2])
    after = [(id(p.grad), p.grad.data_ptr()) for p in model]
    return {"same": before == after, "right": right, "buckets": stats.buckets}


@contextmanager
def collectives() -> Iterator[list[tuple[str, int]]]:
    """Note the calls of the collectives of torch.distributed, with the bytes of what they are given."""
    calls: list[tuple[str, int]] = []
    originals = {name: getattr(dist, name) for name in COLLECTIVES}

    def noted(name: str, given: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append((name, given.nbytes if isinstance(given, Tensor) else 0))
        return originals[name](given, *args, **kwargs)

    for name in originals:
        setattr(dist, name, partial(noted, name))
    try:
        yield calls
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


def bounded() -> dict[str, int]:
    """Return the largest collective while 100 gradients of 4,000 bytes go through buckets of 10,000."""
    model = fill(bag(*[(1000,)] * 100), range(100))
    with collectives() as calls:
        stats = sync_gradients(model, bucket_bytes=10_000)
    return {"largest": max(size for _, size in calls), "buckets": stats.buckets}


def random_gradients() -> dict[str, Any]:
    """Average gradients of many shapes and dtypes; return what differs between ranks before and after."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    shapes: list[tuple[int, ...]] = [(), (0,), (1,), (7, 3), (700, 700), (5, 2, 3)]
    model = nn.ParameterList(nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in shapes for dtype in KINDS)
    for parameter in model:
        parameter.grad = torch.randn(parameter.shape, dtype=torch.float32, generator=generator).to(parameter.dtype)
    before = gradients_in_sync(model)
    sync_gradients(model)
    return {"before": len(before), "after": list(gradients_in_sync(model)), "finite": finite(model)}


def finite(model: nn.Module) -> bool:
    return all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def wide_gradient() -> str:
    """Give a bfloat16 parameter a float32 gradient, which one rank lacks."""
    model = bag((2,), dtype=torch.bfloat16)
    if not hasattr(model[0], "grad_dtype"):
        return "torch.float32"
    model[0].grad_dtype = torch.float32
    if dist.get_rank():
        model[0].grad = torch.ones(2)
    sync_gradients(model)
    return str(model[0].grad.dtype)


def compiled() -> dict[str, Any]:
    """Average in a compiled DistributedDataParallel whose group holds two of the ranks."""
    group = dist.new_group([0, 2], backend="gloo")
    result: dict[str, Any] = {"values": None}
    if dist.get_rank() != 1:
        inner = bag((2,))
        model: Any = torch.compile(DistributedDataParallel(inner, process_group=group), backend="eager")
        fill(inner, [0])
        result = {"before": list(gradients_in_sync(model)), "stats": sync_gradients(model).parameters}
        result["values"] = values(inner)
        del model
        gc.collect()
        dist.destroy_process_group(group)
    return result


def subgroup() -> dict[str, Any]:
    model = fill(bag((1,), (1,)), [0] if dist.get_rank() else [0, 1])
    group = dist.new_group([0, 2], backend="gloo")
    result = {
        "sync": said(lambda: sync_gradients(model, group)),
        "look": said(lambda: gradients_in_sync(model, group)),
    }
    if dist.get_rank() != 1:
        dist.destroy_process_group(group)
    return {**result, "values": values(model)}


def alone() -> dict[str, Any]:
    """Average a gradient in a group of one rank that several could not average."""
    groups = [dist.new_group([rank], backend="gloo") for rank in SAME]
    model = sparse_model([dist.get_rank()])
    stats = sync_gradients(model, groups[dist.get_rank()])
    names = gradients_in_sync(model, groups[dist.get_rank()])
    dist.destroy_process_group(groups[dist.get_rank()])
    return {"collectives": stats.collectives, "names": list(names)}


def tower() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def loss(model: nn.Module, rank: int) -> Tensor:
    batch = torch.randn(4, 6, generator=torch.Generator().manual_seed(rank))
    total: Tensor = model(batch).square().mean()
    return total


def bypassed() -> dict[str, Any]:
    """Average gradients of a loss of `model.module`; compare with DDP's, one process's and doubly averaged ones."""
    single = tower()
    for rank in SAME:
        (loss(single, rank) / SIZE).backward()  # type: ignore[no-untyped-call]
    model = DistributedDataParallel(tower())
    loss(model.module, dist.get_rank()).backward()  # type: ignore[no-untyped-call]
    before = gradients_in_sync(model)
    stats = sync_gradients(model)
    ours = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    result = {"before": list(before), "after": list(gradients_in_sync(model)), "buckets": stats.buckets}
    result["single"] = apart(ours, single)
    model.zero_grad(set_to_none=False)
    loss(model, dist.get_rank()).backward()  # type: ignore[no-untyped-call]
    result["ddp"] = apart(ours, model)
    result["ddp in sync"] = list(gradients_in_sync(model))
    sync_gradients(model)
    result["twice"] = apart(ours, model)
    return result


def apart(ours: Sequence[Tensor], model: nn.Module) -> float:
    theirs = [p.grad for p in model.parameters() if p.grad is not None]
    return max(float((one - other).abs().max()) for one, other in zip(ours, theirs, strict=True))


def sparse_model(ranks: Collection[int]) -> nn.Module:
    """Build a sparse embedding that only these ranks use and a layer that all use."""
    model = nn.ModuleDict({"words": nn.Embedding(4, 2, sparse=True), "head": nn.Linear(2, 1)})
    used = model["words"](torch.tensor([1])) if dist.get_rank() in ranks else torch.ones(1, 2)
    torch.autograd.backward(model["head"](used).sum())
    return model


def sharded() -> nn.Module:
    model = tower()
    fully_shard(model)
    loss(model, dist.get_rank()).backward()  # type: ignore[no-untyped-call]
    return model


class FullyShardedDataParallel(nn.Sequential):
    """A class with the name of torch's, which needs an accelerator."""


def on_rank(rank: int, there: Callable[[], nn.Module], elsewhere: Callable[[], nn.Module]) -> nn.Module:
    return there() if dist.get_rank() == rank else elsewhere()


def changed(rank: int, change: Callable[[nn.ParameterList], None]) -> nn.Module:
    """Make three parameters with gradients, and change something about them on one rank."""
    model = bag((2,), (3,), (2,))
    fill(model, range(3))
    if dist.get_rank() == rank:
        change(model)
    return model


def freeze(model: nn.ParameterList) -> None:
    model[1].requires_grad_(False)


def expand(model: nn.ParameterList) -> None:
    model[1].grad = torch.ones(1).expand(3)


def convert(model: nn.ParameterList) -> None:
    model[1].data = model[1].data.double()


def narrow() -> nn.Module:
    """Make a gradient of a dtype that cannot be added up."""
    model = bag((3,)).to(torch.float8_e4m3fn)
    model[0].grad = torch.ones(3).to(torch.float8_e4m3fn)
    return model


def many_parameters() -> nn.Module:
    return on_rank(1, lambda: fill(bag((2,)), [0]), lambda: fill(bag((2,), (3,)), [0, 1]))


WRONG: dict[str, Callable[[], nn.Module]] = {
    "sparse": lambda: sparse_model([1]),
    "fully_shard": sharded,
    "FSDP1": lambda: FullyShardedDataParallel(nn.Linear(2, 2)),
    "other shape": lambda: on_rank(1, lambda: bag((2,), (4,)), lambda: bag((2,), (3,))),
    "fewer parameters": many_parameters,
    "other order": lambda: on_rank(2, lambda: named("b", "a"), lambda: named("a", "b")),
    "frozen on one": lambda: changed(0, freeze),
    "meta": lambda: on_rank(1, lambda: bag((2,)).to("meta"), lambda: bag((2,))),
    "expanded": lambda: changed(1, expand),
    "converted": lambda: changed(1, convert),
    "float8": narrow,
}


def said(call: Callable[[], object]) -> str:
    try:
        call()
    except DistributedError as error:
        return str(error)
    return ""


def refused(make: Callable[[], nn.Module]) -> dict[str, Any]:
    """Return each function's error, whether gradients are unchanged, and whether the ranks can still communicate."""
    model = make()
    before = [p.grad for p in model.parameters()]
    kept = [None if gradient is None else gradient.clone() for gradient in before]
    result = {"sync": said(lambda: sync_gradients(model)), "look": said(lambda: gradients_in_sync(model))}
    after = [p.grad for p in model.parameters()]
    intact = all(one is other for one, other in zip(before, after, strict=True)) and all(
        same(one, other) for one, other in zip(kept, after, strict=True)
    )
    return {**result, "intact": intact, "works after": with_ours([SAME] * SIZE)}


def same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    if isinstance(one, DTensor) and isinstance(other, DTensor):
        return torch.equal(one.to_local(), other.to_local())
    return same_bits(one, other)


class Unreadable(Tensor):
    """A tensor whose elements cannot be read."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.detach:
            raise RuntimeError("not to be read")
        return super().__torch_function__(function, types, args, kwargs)  # type: ignore[no-untyped-call]


def unreadable() -> dict[str, Any]:
    model = fill(bag((2,)), [0])
    if dist.get_rank() == 1:
        model.get_parameter("0").grad = torch.ones(2).as_subclass(Unreadable)
    return {"look": said(lambda: gradients_in_sync(model)), "works after": with_ours([SAME] * SIZE)}


def bad_buckets() -> list[str]:
    model = fill(bag((2,)), [0])
    wrong: list[Any] = [0, "a"]
    result = [said(partial(sync_gradients, model, bucket_bytes=size)) for size in wrong]
    return [*result, said(lambda: sync_gradients(model, bucket_bytes=dist.get_rank()))]


def other_buckets() -> str:
    return said(lambda: sync_gradients(bag((2,)), bucket_bytes=100 * (1 + dist.get_rank() // 2)))


def how_many() -> dict[str, Any]:
    """Count each way's collectives for 500 small parameters of which each rank has other gradients."""
    model = fill(bag(*[(64, 16)] * 500), range(dist.get_rank(), 500, 2))
    with collectives() as ours:
        stats = sync_gradients(model)
    with collectives() as look:
        gradients_in_sync(model)
    with collectives() as theirs:
        naive(model)
    counts = {name: [call for call, _ in calls] for name, calls in (("ours", ours), ("look", look), ("naive", theirs))}
    return {**counts, "stats": stats.collectives}


def seen(*gradients: object) -> list[str]:
    """Call `gradients_in_sync` with `gradients[r]`, a tensor or None, on rank r, beside an equal gradient."""
    model = bag((2,), (2,))
    model[0].grad = torch.ones(2)
    mine = gradients[dist.get_rank()]
    if isinstance(mine, Tensor):
        model[1] = nn.Parameter(torch.zeros_like(mine))
        model[1].grad = mine
    return list(gradients_in_sync(model))


def only_some_have() -> list[str]:
    """Report a parameter without gradient: it is news that another rank lacks it."""
    return list(gradients_in_sync(on_rank(1, lambda: bag((2,)), lambda: bag((2,), (3,)))))


def flipped() -> list[str]:
    """Flip the last bit of one of a million elements on one rank."""
    whole = torch.ones(1000, 1000)
    other = whole.clone()
    other[999, 998] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    return seen(whole, whole, other)


one, nan = torch.tensor([1.0, 2.0]), torch.tensor([float("nan"), 1.0])
grid = torch.arange(24.0).reshape(1, 2, 3, 4)
LOOKS: dict[str, Callable[[], list[str]]] = {
    "equal": lambda: seen(one, one, one),
    "flipped": flipped,
    "one has none": lambda: seen(one, None, one),
    "equal NaN": lambda: seen(nan, nan, nan),
    "other NaN": lambda: seen(nan, nan.flip(0), nan),
    "signed zero": lambda: seen(torch.zeros(2), torch.zeros(2), -torch.zeros(2)),
    "permuted": lambda: seen(one, one.flip(0), one),
    "other shape": lambda: seen(one, one, one.reshape(2, 1)),
    "other dtype, same bytes": lambda: seen(torch.zeros(2).half(), torch.zeros(2).half(), torch.zeros(2).bfloat16()),
    "other strides": lambda: seen(grid, grid.to(memory_format=torch.channels_last), grid),
    "sparse": lambda: seen(torch.eye(2).to_sparse(), torch.eye(2).to_sparse(), torch.eye(2)),
    "only some have": only_some_have,
}


FEWER = [[0, 1, 2], [0, 1], [0, 1]]
OTHERS = [[0, 1], [1, 2], [1, 2]]
CASES: dict[str, Callable[[], Any]] = {
    "naive, others": partial(with_naive, OTHERS),
    "naive, fewer": partial(with_naive, FEWER),
    "ours, others": partial(with_ours, OTHERS),
    "ours, fewer": partial(with_ours, FEWER),
    "ours, nowhere": partial(with_ours, [[0], [0], []]),
    "float16": partial(overflow, torch.float16, 60000.0, sync_gradients),
    "float16, naive": partial(overflow, torch.float16, 60000.0, naive),
    "bfloat16": partial(overflow, torch.bfloat16, 3e38, sync_gradients),
    "bfloat16, naive": partial(overflow, torch.bfloat16, 3e38, naive),
    "float64": exact,
    "mixed": mixed,
    "tied": tied,
    "frozen": frozen,
    "strides": strides,
    "identity": identity,
    "bounded": bounded,
    "random": random_gradients,
    "wide gradient": wide_gradient,
    "subgroup": subgroup,
    "compiled": compiled,
    "alone": alone,
    "DDP": bypassed,
    "other buckets": other_buckets,
    "bad buckets": bad_buckets,
    "unreadable": unreadable,
    "how many": how_many,
    **{f"refused: {name}": partial(refused, make) for name, make in WRONG.items()},
    **{f"look: {name}": look for name, look in LOOKS.items()},
}


if __name__ == "__main__":
    run_cases(CASES, sys.argv[1], SIZE)
