"""Measure a step operator by operator: its FLOPs, and the bytes of live tensors.

A tensor is live from the operator that creates it until its last reference is gone, whoever holds that reference:
autograd, a closure of the checkpoint, a cache. Nothing is judged here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ckpt_surgery.flops import flops_of
from ckpt_surgery.measure.results import Timeline
from ckpt_surgery.runtime.tools.tensors import inner_tensors, is_wrapper
from ckpt_surgery.torch_names import TorchDispatchMode

_MAX_POINTS = 200  # enough for a plot
_aten = torch.ops.aten


@dataclass(slots=True)
class FlopCount:
    """The FLOPs of a step: `blocks` is the forward's share in blocks, `spared` what recomputes skip for `save`.

    The former is known only of runs without checkpointing.
    """

    forward: int = 0
    backward: int = 0
    blocks: int = 0
    spared: int = 0


class LiveBytes(TorchDispatchMode):
    """A mode that counts the bytes of live storages allocated while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live: dict[int, StorageRecord] = {}
        self._bytes = 0
        self.most_bytes = 0
        """The most bytes that were alive at once since this was last set."""
        self._operators = 0
        self._serial = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(map(is_wrapper, types)):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        self._track_new(func, result)
        return result

    def left_bytes(self, besides: Iterable[Tensor] = ()) -> int:
        """Return the bytes alive now without those of the tensors in `besides`, such as the loss and the gradients."""
        live = {storage.serial: storage.bytes for storage in self._live.values()}
        for own in self._tracked(besides):
            live.pop(own.serial, None)
        return sum(live.values())

    @property
    def _block(self) -> str:
        """The name of the running block; empty outside blocks."""
        return ""

    @property
    def _part(self) -> str:
        """The name of the innermost running part of the block; empty outside parts."""
        return ""

    def _track_new(self, func: Any, result: Any) -> None:
        self._operators += 1
        for index, value in enumerate(result if isinstance(result, (tuple, list)) else (result,)):
            if isinstance(value, Tensor) and _allocates(func, index):
                self._track(func, value)

    def _track(self, func: Any, tensor: Tensor) -> None:
        storage = _storage(tensor)
        if storage is None or storage._cdata in self._live:
            return
        key, size = storage._cdata, storage.nbytes()
        self._serial += 1

        def freed(_: object) -> None:
            record = self._live.pop(key)
            self._bytes -= record.bytes
            self._freed(record)

        record = StorageRecord(
            self._serial, size, self._block, self._part, self._operators, weakref.ref(storage, freed)
        )
        self._live[key] = record
        self._bytes += size
        self.most_bytes = max(self.most_bytes, self._bytes)
        self._allocated(record, func, tensor)

    def _allocated(self, record: StorageRecord, func: Any, tensor: Tensor) -> None:
        """Handle a new storage, which the operator `func` allocated for `tensor`. For subclasses."""

    def _freed(self, record: StorageRecord) -> None:
        """Handle a freed storage. For subclasses."""

    def _tracked(self, tensors: Iterable[Tensor]) -> Iterator[StorageRecord]:
        """Yield the storages of some tensors that were allocated while active and are alive."""
        for tensor in tensors:
            for inner in inner_tensors(tensor):
                storage = _storage(inner)
                if storage is not None and (record := self._live.get(storage._cdata)):
                    yield record


class Meter(LiveBytes):  # type: ignore[no-untyped-call]
    """A mode that counts FLOPs and bytes, in forward and backward separately, and the share of the blocks.

    FLOPs are those of matrix products, convolutions and attention, as torch.utils.flop_counter counts them.
    Bytes are those of storages allocated while active; parameters, buffers and inputs do not count. The caller marks
    the blocks with `enter_block` and `leave_block`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = FlopCount()
        self.kept_bytes = 0
        self.best_kept_bytes = 0
        self.held_bytes: dict[str, int] = {}
        """The part of `kept_bytes` that each block made and did not return."""
        self.held_by_parts: dict[str, int] = {}
        """The same for the parts of blocks, by the names in `part_stack`."""
        self.part_stack: list[str] = []
        """The parts that are running, the innermost last; whoever hooks them pushes and pops."""
        self.on_operator: Callable[[], None] | None = None
        """Called before each operator of the forward."""
        self.leaking_blocks: set[str] = set()
        """Blocks that created a tensor which was used outside of them, although they did not return it."""
        self._block_stack: list[str] = []
        self._given: dict[int, int] = {}  # serial number to bytes: storages passed to blocks
        self._returned: dict[int, int] = {}  # serial number to bytes: storages returned by blocks
        self._recomputes: list[int] = []  # operator counts at which a recompute began
        self._points: list[tuple[int, int]] = []  # operator counts and bytes alive
        self._backward_at: int | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(map(is_wrapper, types)):
            return NotImplemented
        return self._metered(func, args, kwargs or {})

    def _metered(self, func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Run an operator, and count it."""
        if self._backward_at is None:
            if self.on_operator is not None:
                self.on_operator()
            if func not in _NO_READ:
                self._find_leaks(args)
        result = func(*args, **options)
        self._count(func, args, options, result)
        self._track_new(func, result)
        self._points.append((self._operators, self._bytes))
        return result

    def enter_block(self, name: str, values: Iterator[Tensor]) -> None:
        """Mark the start of a block's forward; `values` are the tensors passed to it."""
        if not self._block_stack:
            self._record(values, self._given)
        self._block_stack.append(name)

    def leave_block(self, values: Iterator[Tensor]) -> None:
        """Mark the end of the innermost block's forward; `values` are the tensors it returned."""
        self._block_stack.pop()
        if not self._block_stack:
            self._record(values, self._returned)

    def start_backward(self, loss: Tensor) -> None:
        """Mark the end of the forward: all that is alive now, except `loss`, was kept for the backward.

        The caller must hold no other tensor of the step, such as the model's output.
        """
        self._backward_at = self._operators
        live = {storage.serial: storage for storage in self._live.values()}
        for own in self._tracked([loss]):
            live.pop(own.serial, None)
        self.kept_bytes = sum(storage.bytes for storage in live.values())
        outside = {serial: s.bytes for serial, s in live.items() if not s.block or serial in self._returned}
        self.best_kept_bytes = sum((outside | self._given).values())
        for serial, storage in live.items():
            if storage.block and serial not in self._returned and serial not in self._given:
                self.held_bytes[storage.block] = self.held_bytes.get(storage.block, 0) + storage.bytes
                if storage.part:
                    self.held_by_parts[storage.part] = self.held_by_parts.get(storage.part, 0) + storage.bytes

    def start_recompute(self) -> None:
        self._recomputes.append(self._operators)

    def recompute_bytes(self, gradients: Iterable[Tensor] = ()) -> tuple[int, ...]:
        """Return the bytes alive at the start of each recompute; `gradients` are left out, as in `timeline`."""
        points = self._points_without(gradients)
        return tuple(points[operator - 1][1] if operator else 0 for operator in self._recomputes)

    def timeline(self, gradients: Iterable[Tensor] = ()) -> Timeline:
        """Return the bytes alive after each operator; above 200 operators, the maximum of at most 200 intervals.

        `gradients` are left out: they are results of the backward, not activations.
        """
        points = self._points_without(gradients)
        length = -(-len(points) // _MAX_POINTS) or 1
        intervals = [points[start : start + length] for start in range(0, len(points), length)]
        highest = tuple(max(interval, key=lambda point: point[1]) for interval in intervals)
        return Timeline(highest, self._backward_at or 0)

    def _points_without(self, gradients: Iterable[Tensor]) -> list[tuple[int, int]]:
        """Return the bytes alive after each operator, without those of `gradients`."""
        storages = {storage.serial: storage for storage in self._tracked(gradients)}
        created: dict[int, int] = {}  # operator to bytes
        for storage in storages.values():
            created[storage.operator] = created.get(storage.operator, 0) + storage.bytes
        points, gradient_bytes = [], 0
        for operator, live in self._points:
            gradient_bytes += created.get(operator, 0)
            points.append((operator, live - gradient_bytes))
        return points

    @property
    def _block(self) -> str:
        """The name of the outermost running block; empty outside blocks."""
        return self._block_stack[0] if self._block_stack else ""

    @property
    def _part(self) -> str:
        return self.part_stack[-1] if self.part_stack else ""

    def _record(self, values: Iterator[Tensor], sizes: dict[int, int]) -> None:
        for storage in self._tracked(values):
            sizes[storage.serial] = storage.bytes

    def _find_leaks(self, args: tuple[Any, ...]) -> None:
        """Note the blocks that made a tensor which is read outside of them, although they did not return it."""
        read = (item for arg in args for item in (arg if isinstance(arg, (tuple, list)) else (arg,)))
        for storage in self._tracked(item for item in read if isinstance(item, Tensor) and item.requires_grad):
            passed_on = storage.serial in self._given or storage.serial in self._returned
            if not passed_on and storage.block not in ("", self._block):
                self.leaking_blocks.add(storage.block)

    def _count(self, func: Any, args: tuple[Any, ...], options: Mapping[str, Any], result: Any) -> None:
        flops = flops_of(func, args, options, result)
        if self._backward_at is not None:
            self.flops.backward += flops
            return
        self.flops.forward += flops
        if self._block_stack:
            self.flops.blocks += flops


@dataclass(frozen=True, slots=True, eq=False)
class StorageRecord:
    """A live storage: its serial number and size, and the block, its part and the operator that allocated it.

    `block` is empty outside blocks, and `part` outside their parts. The callback of `reference` reports when the
    storage is freed.
    """

    serial: int
    bytes: int
    block: str
    part: str
    operator: int
    reference: weakref.ref[torch.UntypedStorage]


class PerturbedRounding(TorchDispatchMode):
    """A mode that changes how matrix products, sums and convolutions are rounded.

    The terms of products and sums are added up in reverse order. That alone sometimes gives the same bits, so each
    result is also changed at random, by at most one unit in the last place; `seed` selects the changes.
    """

    def __init__(self, seed: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator().manual_seed(int(seed))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(map(is_wrapper, types)):
            return NotImplemented
        index = _LEFT_FACTOR.get(func)
        if index is not None:
            left, right = args[index], args[index + 1]
            args = (*args[:index], left.flip(-1), right.flip(-2), *args[index + 2 :])
        elif func is _aten.sum.dim_IntList and args[1]:
            args = (args[0].flip(list(args[1])), *args[1:])
        elif func not in _CONVOLUTIONS:
            return func(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        return tuple(map(self._perturbed, result)) if isinstance(result, tuple) else self._perturbed(result)

    def _perturbed(self, result: Tensor | None) -> Tensor | None:
        if result is None or not result.is_floating_point():
            return result
        units = torch.randint(-1, 2, result.shape, generator=self._generator).to(result.device, result.dtype)
        change = result * units * torch.finfo(result.dtype).eps
        return result + change.where(result.isfinite(), 0)  # infinity times zero is NaN


_LEFT_FACTOR = {_aten.mm.default: 0, _aten.bmm.default: 0, _aten.addmm.default: 1, _aten.baddbmm.default: 1}
"""The index of the left factor among the arguments of a matrix product; the right one follows."""

_CONVOLUTIONS = {_aten.convolution.default, _aten.convolution_backward.default}

_NO_READ = {_aten.detach.default, _aten.alias.default}
"""Operators that do not read the data of their argument."""


def _storage(tensor: Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse tensors, for example, have no single storage
        return None


@cache
def _allocates(func: Any, index: int) -> bool:
    """Tell whether the result with this index is a new tensor, not an alias of an argument."""
    if func is _aten.lift_fresh.default:
        return True  # what `torch.tensor` has just made of numbers
    returns = func._schema.returns
    return returns[min(index, len(returns) - 1)].alias_info is None
