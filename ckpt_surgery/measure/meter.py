"""Work and memory of a step, counted operator by operator: FLOPs, and the bytes of tensors that are alive.

Measures only. Tensors count from the operator that made them until the last holder lets go of them, whoever
holds them: autograd, a closure of the checkpoint, a cache.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from ckpt_surgery.measure.results import Timeline

_POINTS = 200
_aten = torch.ops.aten


class Meter(TorchDispatchMode):
    """Counts what runs inside its `with`, forward and backward apart, and inside blocks apart from the rest.

    FLOPs are those of matrix products, convolutions and attention, as torch.utils.flop_counter counts them.
    Bytes are of storages that operators inside made: parameters, buffers and inputs do not count. Whoever
    knows where blocks begin and end says so through `enter_block` and `leave_block`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.forward_flops = 0
        self.backward_flops = 0
        self.block_flops = 0
        self.kept_bytes = 0
        self.best_kept_bytes = 0
        self.aside: set[str] = set()
        """Blocks that made a tensor which others used although it was neither given to them nor returned."""
        self._alive: dict[int, _Storage] = {}
        self._bytes = 0
        self._operators = 0
        self._inside: list[str] = []
        self._given: dict[int, int] = {}  # bytes of storages that blocks were given, by serial number
        self._returned: dict[int, int] = {}  # and of those that they returned
        self._serial = 0
        self._line: list[tuple[int, int]] = []
        self._backward_at = -1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if self._backward_at < 0 and func not in _UNREAD:
            self._look_for_strangers(args)
        result = func(*args, **options)
        self._count(func, args, options, result)
        self._operators += 1
        for place, value in enumerate(result if isinstance(result, (tuple, list)) else (result,)):
            if isinstance(value, Tensor) and _is_new(func, place):
                self._take(value)
        self._line.append((self._operators, self._bytes))
        return result

    def enter_block(self, name: str, values: Iterator[Tensor]) -> None:
        """A block begins in the forward; `values` are the tensors that it was given."""
        if not self._inside:
            self._mark(values, self._given)
        self._inside.append(name)

    def leave_block(self, values: Iterator[Tensor]) -> None:
        """The block entered last ends; `values` are the tensors that it returned."""
        self._inside.pop()
        if not self._inside:
            self._mark(values, self._returned)

    def start_backward(self, loss: Tensor) -> None:
        """The forward is over: what is alive now, `loss` apart, was kept for the backward.

        Nothing else may hold on to tensors of the step by now, such as the model's output.
        """
        self._backward_at = self._operators
        storage = _storage(loss)
        own = None if storage is None else self._alive.get(storage._cdata)
        alive = {s.serial: s for s in self._alive.values() if s is not own}
        self.kept_bytes = sum(s.bytes for s in alive.values())
        others = {serial: s.bytes for serial, s in alive.items() if not s.block or serial in self._returned}
        self.best_kept_bytes = sum((others | self._given).values())

    def timeline(self, gradients: Iterable[Tensor] = ()) -> Timeline:
        """The bytes alive after each operator, the highest of each stretch where there are more than 200.

        `gradients` are results of the backward that are no activations: they are left out.
        """
        born: dict[int, int] = {}
        for storage in {id(s): s for s in map(_storage, gradients) if s is not None}.values():
            entry = self._alive.get(storage._cdata)
            if entry is not None:
                born[entry.born] = born.get(entry.born, 0) + entry.bytes
        line, grown = [], 0
        for at, held in self._line:
            grown += born.get(at, 0)
            line.append((at, held - grown))
        stretch = -(-len(line) // _POINTS) or 1
        parts = [line[start : start + stretch] for start in range(0, len(line), stretch)]
        return Timeline(tuple(max(part, key=lambda point: point[1]) for part in parts), max(self._backward_at, 0))

    def _take(self, tensor: Tensor) -> None:
        storage = _storage(tensor)
        if storage is None or storage._cdata in self._alive:
            return
        key, size = storage._cdata, storage.nbytes()
        self._serial += 1

        def gone(_: object) -> None:
            self._bytes -= self._alive.pop(key).bytes

        block = self._inside[0] if self._inside else ""
        self._alive[key] = _Storage(self._serial, size, block, self._operators, weakref.ref(storage, gone))
        self._bytes += size

    def _mark(self, values: Iterator[Tensor], marked: dict[int, int]) -> None:
        for tensor in values:
            storage = _storage(tensor)
            entry = None if storage is None else self._alive.get(storage._cdata)
            if entry is not None:
                marked[entry.serial] = entry.bytes

    def _look_for_strangers(self, args: tuple[Any, ...]) -> None:
        here = self._inside[0] if self._inside else ""
        for value in (part for arg in args for part in (arg if isinstance(arg, (tuple, list)) else (arg,))):
            storage = _storage(value) if isinstance(value, Tensor) and value.requires_grad else None
            entry = None if storage is None else self._alive.get(storage._cdata)
            if entry is None or entry.block in ("", here):
                continue
            if entry.serial not in self._given and entry.serial not in self._returned:
                self.aside.add(entry.block)

    def _count(self, func: Any, args: tuple[Any, ...], options: Mapping[str, Any], result: Any) -> None:
        formula = _formula(func)
        if formula is None:
            return
        flops = int(formula(*args, **options, out_val=result))
        if self._backward_at >= 0:
            self.backward_flops += flops
            return
        self.forward_flops += flops
        if self._inside:
            self.block_flops += flops


@dataclass(frozen=True, slots=True, eq=False)
class _Storage:
    """A storage that is alive: its number, its bytes, the block and the operator that made it.

    `reference` tells when it ends.
    """

    serial: int
    bytes: int
    block: str
    born: int
    reference: weakref.ref[torch.UntypedStorage]


def other_rounding(seed: int = 1) -> TorchDispatchMode:
    """A mode in which matrix products and sums round otherwise: their terms are added from the other end.

    As that hits the very same bits now and then, a random unit in the last place comes on top, another with each
    `seed`.
    """
    return _OtherRounding(seed)


class _OtherRounding(TorchDispatchMode):
    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator().manual_seed(int(seed))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        first = _PRODUCTS.get(func)
        if first is not None:
            left, right = args[first], args[first + 1]
            args = (*args[:first], left.flip(-1), right.flip(-2), *args[first + 2 :])
        elif func is _aten.sum.dim_IntList and args[1]:
            args = (args[0].flip(list(args[1])), *args[1:])
        else:
            return func(*args, **(kwargs or {}))
        return self._nudged(func(*args, **(kwargs or {})))

    def _nudged(self, result: Tensor) -> Tensor:
        if not result.is_floating_point():
            return result
        units = torch.randint(-1, 2, result.shape, generator=self._generator).to(result.device, result.dtype)
        nudge = result * units * torch.finfo(result.dtype).eps
        return result + nudge.where(result.isfinite(), 0)  # infinity times zero is not a number


_PRODUCTS = {_aten.mm.default: 0, _aten.bmm.default: 0, _aten.addmm.default: 1, _aten.baddbmm.default: 1}
_UNREAD = {_aten.detach.default, _aten.alias.default}


def _storage(tensor: Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse tensors and the like have none of their own
        return None


def _is_new(func: Any, place: int) -> bool:
    returns = func._schema.returns
    return returns[min(place, len(returns) - 1)].alias_info is None


def _formula(func: Any) -> Callable[..., Any] | None:
    packet = func._overloadpacket
    return _CPU_ATTENTION.get(packet) or flop_registry.get(packet)


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))  # type: ignore[no-untyped-call]


def _attention_backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    shapes = (gradient.shape, query.shape, key.shape, value.shape)
    return int(sdpa_backward_flop_count(*shapes))  # type: ignore[no-untyped-call]


_CPU_ATTENTION: Mapping[Any, Callable[..., Any]] = {  # torch counts those of other devices only
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
