"""Estimate the least time of operators on a device: each either computes at its peak rate or moves bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from math import prod
from typing import Any

from ckpt_surgery.planning.allocations import OperatorWork
from ckpt_surgery.planning.devices import Device
from ckpt_surgery.runtime.tools.containers import tensors

_WRITES_NOTHING = frozenset({"aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty"})


def seconds_of(work: Iterable[OperatorWork], device: Device) -> float:
    """Return the least seconds that operators take on a device, one after another.

    Each takes the longer of two times: to compute at the peak rate, or to read its arguments from memory and write its
    results there. Launches, communication between ranks, and caches that hold an argument are not counted.
    """
    return sum(max(each.flops / device.flops, each.bytes / device.bandwidth) for each in work)


def moved_bytes(func: Any, args: tuple[Any, ...], options: Mapping[str, Any], result: Any) -> int:
    """Count the bytes that an operator reads and writes: 0 for a view, and for an operator that only allocates."""
    if _moves_nothing(func):
        return 0
    moved = 0
    for each in tensors((*args, *options.values(), result)):
        dimensions = zip(each.shape, each.stride(), strict=True)  # rows that `expand` repeats count once
        moved += prod(length if stride else min(length, 1) for length, stride in dimensions) * each.itemsize
    return moved


@cache
def _moves_nothing(func: Any) -> bool:
    schema = func._schema
    is_view = all(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)
    return (is_view and not schema.is_mutable) or str(func._overloadpacket) in _WRITES_NOTHING
