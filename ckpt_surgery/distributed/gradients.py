"""Average and compare gradients of replicas by hand, for loops whose loss bypasses the wrapper.

Why a loop misses its synchronisation does not matter here; only the gradients that it left do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from ckpt_surgery.distributed.structure import check_module
from ckpt_surgery.errors import DistributedError
from ckpt_surgery.measure.ranks import digest
from ckpt_surgery.runtime.tools.classes import descends
from ckpt_surgery.text import error_line, ranks_in_words

BUCKET_BYTES = 25 * 2**20
"""Small gradients travel together up to this size."""

_ALONE = 2**20
"""From this size on a gradient travels alone: copying it into a bucket and back costs more than a collective."""

_NARROW = (torch.float16, torch.bfloat16)
"""Their sums may overflow where their means do not."""

_SUMMED = (*_NARROW, torch.float32, torch.float64, torch.complex64, torch.complex128)
"""The dtypes that are averaged: others, such as float8, some backends do not sum, and torch does not divide."""

Named = Sequence[tuple[str, nn.Parameter]]
Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SyncStats:
    """The statistics of one `sync_gradients` on this rank.

    `collectives` counts all of them, `buckets` those that carried gradients. `parameters` have a gradient now, of
    `bytes` in total; `created` of them had none on this rank.
    """

    collectives: int = 0
    buckets: int = 0
    parameters: int = 0
    created: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Ranks:
    """A group as one of its ranks sees it. `numbers` are their ranks in the whole job, in the group's order.

    `devices` are the kinds of device whose tensors the group's backend takes: cpu, cuda and others.
    """

    group: dist.ProcessGroup | None
    numbers: tuple[int, ...]
    devices: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.numbers)

    def device(self, wanted: torch.device | None) -> torch.device:
        """Return the device for small collectives: the CPU if the backend takes it, else `wanted` if it can be."""
        if "cpu" in self.devices:
            return torch.device("cpu")
        return wanted if wanted is not None and wanted.type in self.devices else torch.device(self.devices[0])

    def gather(self, value: object) -> list[Any]:
        """Collect what every rank passes, in the group's order; `value` can be pickled."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, self.group)
        return values

    def by_value(self, values: Sequence[Hashable]) -> Iterator[tuple[str, Any]]:
        """Yield each value once, with the ranks that have it in words; `values` has one for each rank."""
        for value in dict.fromkeys(values):
            having = [number for number, theirs in zip(self.numbers, values, strict=True) if theirs == value]
            yield ranks_in_words(having, self.size), value

    def raise_faults(self, caller: str, faults: Sequence[str | None]) -> None:
        """Raise DistributedError in the name of `caller` if any rank has a fault; `faults` has one entry per rank."""
        if any(fault is not None for fault in faults):
            seen = " And ".join(f"on {who}, {fault}" for who, fault in self.by_value(faults) if fault is not None)
            raise DistributedError(f"{caller}: {seen}")

    def agree(self, facts: Facts, frozen: frozenset[str], fault: str | None, device: torch.device) -> None:
        """Raise DistributedError on every rank if any has a fault, or if the ranks have different facts.

        `facts` are what all ranks must agree on, in order. `frozen` are the names of parameters without gradient,
        which only explain a difference. If all is well this takes one collective, of three int64 on `device`.
        """
        number = int.from_bytes(hashlib.sha256(repr(facts).encode()).digest()[:8], "big") >> 1
        extremes = torch.tensor([number, -number, int(fault is not None)], dtype=torch.int64, device=device)
        dist.all_reduce(extremes, dist.ReduceOp.MAX, self.group)
        highest, lowest, faulty = extremes.tolist()
        if highest == -lowest and not faulty:
            return
        gathered: list[tuple[str | None, Facts, frozenset[str]]] = self.gather((fault, facts, frozen))
        self.raise_faults("sync_gradients", [theirs for theirs, _, _ in gathered])
        # the first difference between the models, and what each rank has there
        by_name = [dict.fromkeys(frozen, "frozen") | dict(facts) for _, facts, frozen in gathered]
        for name in dict.fromkeys(name for _, facts, _ in gathered for name, _ in facts):
            what, values = f"'{name}'", [theirs.get(name, "missing") for theirs in by_name]
            if len(set(values)) > 1:
                break
        else:
            orders = zip(*([f"'{name}'" for name, _ in facts] for _, facts, _ in gathered), strict=True)
            place, names = next((place, names) for place, names in enumerate(orders) if len(set(names)) > 1)
            what, values = f"parameter number {place}", list(names)
        seen = ", ".join(f"{value} on {who}" for who, value in self.by_value(values))
        raise DistributedError(
            f"sync_gradients: the ranks do not train the same parameters: {what} is {seen}. Build, freeze and tie the "
            "same model in the same order on every rank, with no gradient left of what is frozen, and pass the same "
            "bucket_bytes."
        )

    def average(self, bucket: Sequence[Tensor]) -> None:
        """Replace the gradients of a bucket by their means.

        Elements travel in logical order and not as they lie in memory: strides may differ between ranks.
        """
        parts = [gradient.reshape(-1).contiguous() for gradient in bucket]
        whole = len(parts) == 1 and not parts[0].is_conj() and not parts[0].is_neg()
        flat = parts[0] if whole else torch.cat(parts)
        if flat.dtype in _NARROW:
            flat.div_(self.size)
        dist.all_reduce(flat, group=self.group)
        if flat.dtype not in _NARROW:
            flat.div_(self.size)
        if not whole:
            for part, mean in zip(parts, torch.split(flat, [len(part) for part in parts]), strict=True):
                part.copy_(mean)
        for gradient, part in zip(bucket, parts, strict=True):
            if not gradient.is_contiguous():  # its part is a copy
                gradient.copy_(part.view_as(gradient))


def sync_gradients(
    model: nn.Module, group: dist.ProcessGroup | None = None, *, bucket_bytes: int = BUCKET_BYTES
) -> SyncStats:
    """Average every `.grad` over the ranks, in place. Every rank calls it after backward, before clipping and step.

    For a loop that has to stay as it is and bypasses its DistributedDataParallel. If the wrapper has averaged
    already, averaging equal gradients changes nothing but rounding. A frozen parameter counts as long as it has a
    `.grad`, on which SGD would step. With one rank there is nothing to do.

    Every rank takes part in the same collectives, whatever gradients it has: one compares the models, one finds the
    parameters that have a gradient on any rank, then there is one for each gradient of 1 MiB or more, and one for
    each `bucket_bytes` of the smaller ones of one device and dtype. A rank that has no gradient contributes zeros and
    gets a gradient of the parameter's shape, strides and dtype. If no rank has one, it stays None. The result is
    the sum divided by the number of ranks (in half precision divided before it is summed), and equal bit for bit on
    every rank.

    With a GradScaler, call it before `unscale_`: what overflows on one rank then does so on every rank. A rank that
    never calls it keeps the others waiting until the group's timeout.

    Args:
        model: the module or its wrapper, compiled or not.
        group: the ranks that take part; by default the wrapper's, or all.
        bucket_bytes: how many bytes of small gradients travel together, 1 or more and the same on every rank. So much
            memory is needed: a gradient that travels alone is not copied if it is contiguous.

    Returns:
        What was done on this rank.

    Raises:
        DistributedError: on every rank and with the same text, the models differ between ranks, or a gradient on any
            rank cannot be averaged: it is sparse or sharded, has no data, is not where or what its parameter is, its
            dtype is not one that is summed, or the backend does not take its device; gradients are then as they were.
            On this rank alone, there is no process group, it is not in `group`, or `model` is not a module.
    """
    module, ranks = _module_and_ranks(model, group, "sync_gradients")
    if ranks.size == 1:
        return SyncStats()
    every = list(module.named_parameters())
    named = [(name, parameter) for name, parameter in every if parameter.requires_grad or parameter.grad is not None]
    device = ranks.device(named[0][1].device if named else None)
    frozen = frozenset(name for name, parameter in every if not parameter.requires_grad)
    facts = (("bucket_bytes", str(bucket_bytes)), *_facts(named))
    given: object = bucket_bytes
    sized = isinstance(given, int) and given >= 1
    bad_size = None if sized else f"bucket_bytes is {bucket_bytes!r}. Give a whole number of bytes, 1 or more."
    ranks.agree(facts, frozen, bad_size or _fault(module, named, ranks.devices), device)
    if not named:
        return SyncStats(collectives=1)
    with torch.no_grad():
        # the gradients that any rank has, in order; those that only this one lacks become zeros
        present = torch.tensor([p.grad is not None for _, p in named], dtype=torch.uint8, device=device)
        dist.all_reduce(present, dist.ReduceOp.MAX, ranks.group)
        chosen: list[Tensor] = []
        created = 0
        for (_, parameter), wanted in zip(named, present.tolist(), strict=True):
            if not wanted:
                continue
            if parameter.grad is None:
                with torch.inference_mode(False):  # otherwise no later backward could add to it
                    parameter.grad = torch.zeros_like(parameter, dtype=_gradient_dtype(parameter))
                created += 1
            chosen.append(parameter.grad)
        buckets = list(_buckets(chosen, bucket_bytes))
        for bucket in buckets:
            ranks.average(bucket)
    size = sum(gradient.nbytes for gradient in chosen)
    return SyncStats(2 + len(buckets), len(buckets), len(chosen), created, size)


def gradients_in_sync(model: nn.Module, group: dist.ProcessGroup | None = None) -> tuple[str, ...]:
    """Name the parameters whose gradients differ between ranks.

    Every rank calls it at the same time and gets the same answer. It compares every bit, with shape and dtype: NaN
    equals NaN, and 0.0 is not -0.0. A gradient that only some ranks have differs, and so does a parameter that only
    some ranks have. Every gradient is read in pieces of 16 MiB and hashed on the CPU: use it for a step now and then.

    Args:
        model: the module or its wrapper, compiled or not.
        group: the ranks that take part; by default the wrapper's, or all.

    Returns:
        The names; none if all gradients are the same.

    Raises:
        DistributedError: on every rank, any rank has sharded gradients, which differ by design, or one that cannot be
            read. On this rank alone, there is no process group, it is not in `group`, or `model` is not a module.
    """
    module, ranks = _module_and_ranks(model, group, "gradients_in_sync")
    if ranks.size == 1:
        return ()
    named = list(module.named_parameters())
    fault, digests = _unreadable(module, named), dict[str, str | None]()
    try:
        digests = {name: None if p.grad is None else digest(p.grad) for name, p in named} if fault is None else {}
    except Exception as error:  # the other ranks wait for this one
        fault = f"a gradient cannot be read: {error_line(error)}"
    gathered = ranks.gather((fault, digests))
    ranks.raise_faults("gradients_in_sync", [theirs for theirs, _ in gathered])
    names = dict.fromkeys(name for _, theirs in gathered for name in theirs)
    return tuple(name for name in names if len({theirs.get(name, "no such parameter") for _, theirs in gathered}) > 1)


def _module_and_ranks(model: nn.Module, group: dist.ProcessGroup | None, caller: str) -> tuple[nn.Module, Ranks]:
    """Return the module inside compilation and wrapper, and the ranks: of `group`, or else of the wrapper, or all.

    Raises DistributedError in the name of `caller` if there is no process group, or this rank is not in it.
    """
    check_module(model, caller)
    module = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    if isinstance(module, DistributedDataParallel):
        group = module.process_group if group is None else group
        module = module.module
    if not (dist.is_available() and dist.is_initialized()):
        raise DistributedError(
            f"{caller}: there is no process group on this rank. Start the script with torchrun and call "
            "torch.distributed.init_process_group() before."
        )
    if dist.get_rank(group) < 0:
        raise DistributedError(
            f"{caller}: rank {dist.get_rank()} is not in the group that it was given. Call it on the group's ranks "
            "only."
        )
    kinds = [pair.partition(":")[0] for pair in dist.get_backend_config(group).split(",")]
    numbers = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
    return module, Ranks(group, tuple(numbers), tuple(kinds))


def _facts(named: Named) -> Iterator[tuple[str, str]]:
    """Say in words what has to be the same of each parameter on every rank.

    The number of a device may differ, but not which parameters share a device: that makes the buckets.
    """
    device_numbers: dict[torch.device, int] = {}
    worded: dict[Hashable, str] = {}
    for name, parameter in named:
        shape = None if bool(is_lazy(parameter)) else parameter.shape
        dtype, device = parameter.dtype, parameter.device
        wide = _gradient_dtype(parameter)
        kind = (shape, dtype, wide, device, parameter.requires_grad)
        if kind not in worded:
            place = device_numbers.setdefault(device, len(device_numbers))
            size = "no shape yet" if shape is None else f"shape {tuple(shape)}"
            gradients = "" if wide == dtype else f" with gradients of {wide}"
            others = f", device {place + 1} of the model" if place else ""
            frozen = "" if parameter.requires_grad else ", frozen with a gradient"
            worded[kind] = f"({size}, {dtype}{gradients}, {device.type}{others}{frozen})"
        yield name, worded[kind]


def _gradient_dtype(parameter: nn.Parameter) -> torch.dtype:
    """Return the dtype that torch expects of its gradient: since 2.9 it may differ from the parameter's."""
    wanted: torch.dtype | None = getattr(parameter, "grad_dtype", parameter.dtype)
    if wanted is None:
        return parameter.dtype if parameter.grad is None else parameter.grad.dtype
    return wanted


def _fault(module: nn.Module, named: Named, devices: Sequence[str]) -> str | None:
    """Say why this rank's gradients cannot be averaged, in sentences that follow "on rank 0,"; None if they can."""
    if (unreadable := _unreadable(module, named)) is not None:
        return unreadable
    for name, parameter in named:
        gradient = parameter.grad
        if bool(is_lazy(parameter)):
            return f"'{name}' has no shape yet. Run one forward pass through its lazy module on every rank before."
        if parameter.device.type not in devices:
            return (
                f"'{name}' is on {parameter.device.type}, and the group's backend takes only tensors on "
                f"{' and '.join(devices)}. Move the model there, or pass a group with another backend."
            )
        if gradient is None:
            continue
        if gradient.layout != torch.strided:
            return (
                f"the gradient of '{name}' is sparse ({gradient.layout}), and only dense ones are averaged here. "
                "Make the layer without sparse=True, or call to_dense() on its gradient on every rank."
            )
        wanted = (parameter.shape, _gradient_dtype(parameter), parameter.device)
        if (gradient.shape, gradient.dtype, gradient.device) != wanted:
            return (
                f"the gradient of '{name}' has shape {tuple(gradient.shape)}, {gradient.dtype}, on {gradient.device}, "
                f"and should have shape {tuple(parameter.shape)}, {wanted[1]}, on {parameter.device}. Do not move or "
                "convert the parameter between backward and this call."
            )
        if gradient.dtype not in _SUMMED:
            return (
                f"the gradient of '{name}' is {gradient.dtype}, which cannot be summed. Train the parameter in a "
                "wider dtype, or freeze it and set its gradient to None on every rank."
            )
        sizes = zip(gradient.stride(), gradient.shape, strict=True)
        if gradient.numel() and any(stride == 0 and size > 1 for stride, size in sizes):
            return f"elements of the gradient of '{name}' share memory. Assign grad.contiguous() instead."
    return None


def _unreadable(module: nn.Module, named: Named) -> str | None:
    """Say why this rank's gradients are not those of a replica, or cannot be read; None if neither is so."""
    if any(descends(type(part), "FullyShardedDataParallel") for part in module.modules()):
        return "the model is sharded by FullyShardedDataParallel, which synchronises gradients itself. Leave this out."
    for name, parameter in named:
        if descends(type(parameter), "DTensor") or descends(type(parameter.grad), "DTensor"):
            return (
                f"'{name}' is a DTensor, of which each rank holds a part: FSDP2 and tensor parallelism synchronise "
                "gradients themselves. Leave this out, or pass the part of the model that is not sharded."
            )
        if parameter.is_meta:
            return f"'{name}' is on the meta device and has no data. Load its weights before."
    return None


def _buckets(gradients: Sequence[Tensor], limit: int) -> Iterator[list[Tensor]]:
    """Yield the gradients by device and dtype, in lists of at most `limit` bytes; a large one is alone."""
    filling: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], int]] = {}
    large = min(limit, _ALONE)
    for gradient in gradients:
        size = gradient.nbytes
        if size >= large:
            yield [gradient]
            continue
        kind = (gradient.device, gradient.dtype)
        bucket, filled = filling.get(kind, ([], 0))
        if filled + size > limit:
            yield bucket
            bucket, filled = [], 0
        bucket.append(gradient)
        filling[kind] = (bucket, filled + size)
    for bucket, _ in filling.values():
        yield bucket
