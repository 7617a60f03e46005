"""The least time of operators on a device: the time to compute at its peak rate or to move bytes, whichever is longer.

Operators run one after another; each reads its arguments from memory and writes its results. Launches, communication
between ranks, and caches that hold an argument are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor

from ckpt_surgery.planning.devices import Device
from ckpt_surgery.planning.phases import StepPhase
from ckpt_surgery.torch_names import tree_leaves

_WRITES_NOTHING = frozenset({"aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty"})


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """One operator: its module, the part of the step, its floating-point operations and the bytes it moves.

    `module` is empty in the backward, except in recomputes.
    """

    module: str
    phase: StepPhase
    flops: int
    bytes: int
    at: int = 0
    """Its number among all operators of the step, from 1."""


def seconds_of(work: Iterable[OperatorWork], device: Device) -> float:
    """Return the least seconds that operators take on a device."""
    return sum(max(each.flops / device.flops, each.bytes / device.bandwidth) for each in work)


def moved_bytes(func: Any, args: tuple[Any, ...], options: Mapping[str, Any], result: Any) -> int:
    """Count the bytes that an operator reads and writes: 0 for a view, and for an operator that only allocates."""
    if _moves_nothing(func):
        return 0
    return sum(_size(each) for each in tree_leaves((args, dict(options), result)) if isinstance(each, Tensor))


@cache
def _moves_nothing(func: Any) -> bool:
    schema = func._schema
    is_view = all(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)
    return (is_view and not schema.is_mutable) or str(func._overloadpacket) in _WRITES_NOTHING


def _size(tensor: Tensor) -> int:
    """Count a tensor's bytes; those of one row if all rows are the same one, as `expand` makes them."""
    count = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= length if stride else min(length, 1)
    return count * tensor.itemsize
