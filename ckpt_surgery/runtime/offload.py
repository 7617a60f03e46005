"""Block inputs kept in host memory between forward and backward, through autograd's hooks for saved tensors.

The caller says which tensors are a block's inputs, and which results of it are kept with them; checkpointing itself is
torch's.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.weak import TensorWeakRef

from ckpt_surgery.errors import ModifiedTensorError, OptionError
from ckpt_surgery.runtime.host_transport import HostTransport


class Transport(Protocol):
    """Takes tensors to a store and brings them back.

    Every method may return before its copy is done. Dropping a copy means that it is no longer needed. An offloader
    that is copied or pickled takes its transport along.
    """

    def put(self, source: Tensor) -> Any:
        """Start to copy a strided tensor to the store. The caller keeps `source` until `finish`.

        Returns the copy, and None where the store has no room: the tensor stays on the device then.
        """

    def finish(self, host_copy: Any) -> None:
        """After this, the memory of the copy's source may be given to others."""

    def start(self, host_copy: Any) -> Any:
        """Start to copy back and return the copy on the device; this can be done many times."""

    def get(self, device_copy: Any) -> Tensor:
        """The tensor that was copied back: shape, dtype, device and order of strides of the source, in new memory."""

    def release(self) -> None:
        """Give back what is held for later copies. The copies that there are stay."""


@dataclass(slots=True)
class OffloadStats:
    """What an offloader has done since it was made.

    Of the block inputs that were saved, and of the results that were kept with them, `tensors` left the device,
    `bytes` in total; `deduplicated` were already saved for another block; and `kept` stayed: those of the last call in
    each forward, parameters, small ones, and those that there was `no_room` for. At most `peak_in_flight` copies were
    on their way from the device at once. Of what the backward `fetched`, `prefetched` was on its way before it was
    asked for, and at most `peak_returning` copies at once.
    """

    tensors: int = 0
    bytes: int = 0
    deduplicated: int = 0
    kept: int = 0
    peak_in_flight: int = 0
    no_room: int = 0
    fetched: int = 0
    prefetched: int = 0
    peak_returning: int = 0


class Offloader:
    """Moves the inputs of checkpointed blocks off the device, and back when the backward reaches them.

    One offloader serves all blocks of a model: each block's inputs start to move when the next block begins, so
    those of the last block never move. They come back one block ahead: in the order of the last whole step, where this
    one has as many calls of blocks, and else in that of the forward, reversed. It keeps nothing alive: what was saved
    lives as long as the graph. Copies and pickles have its options and nothing of what it has saved.
    """

    def __init__(self, transport: Transport | None = None, *, minimum_bytes: int = 1024, in_flight: int = 2) -> None:
        """Use `transport`, by default one to host memory.

        Tensors of less than `minimum_bytes` stay. While `in_flight` tensors are on their way, the oldest is waited
        for before another is sent, and no more than so many are on their way back ahead of their use. With results,
        as many more leave at a time as the call that is sent has of them. Raises
        OptionError where `in_flight` is below 1 or `minimum_bytes` below 0.
        """
        if in_flight < 1 or minimum_bytes < 0:
            raise OptionError(
                f"in_flight must be at least 1 and minimum_bytes at least 0, not {in_flight} and {minimum_bytes}"
            )
        self.stats = OffloadStats()
        self.transport: Transport = HostTransport() if transport is None else transport
        self._minimum_bytes = minimum_bytes
        self._in_flight = in_flight
        # The forward runs on the caller's thread, the backward of an accelerator on autograd's.
        self._lock = threading.Lock()
        self._known: weakref.WeakValueDictionary[int, _OffloadedTensor] = weakref.WeakValueDictionary()
        self._copying: deque[weakref.ref[_OffloadedTensor]] = deque()
        self._returning: deque[weakref.ref[_OffloadedTensor]] = deque()
        self._newest: Callable[[], _Inputs | None] = _none
        self._step = _CallOrder()
        self._order: tuple[int, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return _offloader, (self.transport, self._minimum_bytes, self._in_flight)

    def release(self) -> None:
        """Give back the memory that the transport holds for later steps; what is saved stays until its graph ends."""
        with self._lock:
            self.transport.release()

    @contextmanager
    def saving(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Inside, those of `tensors` that autograd saves are moved; whatever else it saves stays.

        `tensors` are the positional tensors with gradient of one `torch.utils.checkpoint.checkpoint` call, of any
        shape and floating dtype; the call is the body of the `with`. Only strided tensors of class Tensor move: no
        parameters, no views of parameters, no subclasses but torch's fake tensors. The backward raises
        ModifiedTensorError where a tensor that was saved here was modified in place afterwards.
        """
        if not torch.is_grad_enabled():
            yield
            return
        with self._lock, torch.no_grad():
            newest = self._newest()
            if newest is not None:
                self._send(newest.tensors, self._in_flight + newest.results)
            if self._step.order:  # its backward has begun
                self._step = _CallOrder()
            inputs = _Inputs(self._step)
        given = list(tensors)
        around = getattr(_SAVING, "call", None)
        _SAVING.call = self, inputs

        # torch passes the very object that was given to the checkpoint, for leaves and results alike, in both
        # modes: non-reentrant saves before it sets its own hooks, reentrant after its forward. Were it ever an
        # alias instead, it would stay on the device: more memory, never a wrong value.
        def pack(tensor: Tensor) -> _Kept | _Reference:
            moves = any(tensor is value for value in given)
            return self._save(tensor, inputs) if moves else _Kept(tensor)

        try:
            with saved_tensors_hooks(pack, self._unpack):
                yield
        finally:
            _SAVING.call = around
            given.clear()  # autograd holds `pack` as long as what it has packed

    def keep(self, result: Tensor, aliases: Sequence[Tensor], inputs: _Inputs) -> MovedResult | None:
        """See `keep_result`; `inputs` are those of the call whose result it is."""
        with self._lock, torch.no_grad():
            offloaded = _OffloadedTensor(result, aliases)
            if offloaded.bytes < self._minimum_bytes:
                return None
            self.stats.kept += 1
            inputs.add(offloaded)
            inputs.results += 1
            self._newest = weakref.ref(inputs)
            return MovedResult(self, _Reference(offloaded, inputs, len(inputs.tensors)))

    def _save(self, tensor: Tensor, inputs: _Inputs) -> _Kept | _Reference:
        with self._lock, torch.no_grad():
            offloaded = self._known.get(id(tensor))
            if offloaded is not None and offloaded.is_of(tensor):
                self.stats.deduplicated += 1
            else:
                self.stats.kept += 1
                if not _can_move(tensor):
                    return _Kept(tensor)
                offloaded = _OffloadedTensor(tensor)
                if offloaded.bytes < self._minimum_bytes:
                    return _Kept(tensor)
                self._known[id(tensor)] = offloaded
            inputs.add(offloaded)
            self._newest = weakref.ref(inputs)
            return _Reference(offloaded, inputs, len(inputs.tensors))

    def _send(self, tensors: Sequence[_OffloadedTensor], most: int) -> None:
        for offloaded in tensors:
            if offloaded.host_copy is not None or offloaded.source is None or offloaded.stays:
                continue  # an earlier block's as well
            self._wait_for(most - 1)
            offloaded.host_copy = self.transport.put(offloaded.source)
            if offloaded.host_copy is None:
                offloaded.stays = True
                self.stats.no_room += 1
                continue
            self._copying.append(weakref.ref(offloaded))
            self.stats.kept -= 1
            self.stats.tensors += 1
            self.stats.bytes += offloaded.bytes
            self.stats.peak_in_flight = max(self.stats.peak_in_flight, len(self._copying))

    def _wait_for(self, most: int, needed: Sequence[_OffloadedTensor] = ()) -> None:
        """Wait for the oldest in flight until at most so many are left, apart from those `needed` here soon."""
        copying = [offloaded for reference in self._copying if (offloaded := reference()) is not None]
        waited = [offloaded for offloaded in copying if offloaded not in needed][: max(len(copying) - most, 0)]
        for offloaded in waited:
            self.transport.finish(offloaded.host_copy)
            # A source that was written to during its copy stays, so that the backward sees it and raises.
            if not offloaded.modified():
                offloaded.source, offloaded.aliases = None, ()
        self._copying = deque(weakref.ref(offloaded) for offloaded in copying if offloaded not in waited)

    def _unpack(self, saved: _Kept | _Reference) -> Tensor:
        return saved.tensor() if isinstance(saved, _Kept) else self.fetch(saved)

    def fetch(self, saved: _Reference) -> Tensor:
        """What was moved, on its device, and what the backward is expected to need next on its way there."""
        with self._lock, torch.no_grad():
            following = self._following(saved)
            self._wait_for(0, [saved.offloaded, *following])
            tensor = self._fetch(saved.offloaded)
            if saved.offloaded in following and saved.offloaded.source is None:
                saved.offloaded.ready = tensor
            self._prefetch(following)
            return saved.offloaded.view.restore(tensor)

    def _following(self, saved: _Reference) -> list[_OffloadedTensor]:
        """What the backward is expected to need next: the other inputs of this call, and those of the next one."""
        inputs = saved.inputs
        inputs.step.begin_backward(inputs.number)
        if inputs.step.is_whole():
            self._order = tuple(inputs.step.order)
        return [*inputs.tensors[saved.place :], *inputs.step.after(inputs.number, self._order)]

    def _fetch(self, offloaded: _OffloadedTensor) -> Tensor:
        if offloaded.modified():
            raise ModifiedTensorError(_modified(offloaded.view.size))
        if offloaded.source is not None:
            return offloaded.source
        if offloaded.ready is not None:
            tensor, offloaded.ready = offloaded.ready, None
            return tensor
        self.stats.fetched += 1
        self.stats.prefetched += offloaded.device_copy is not None
        if offloaded.device_copy is None:
            offloaded.device_copy = self.transport.start(offloaded.host_copy)
        tensor = self.transport.get(offloaded.device_copy)
        offloaded.device_copy = None
        return tensor

    def _prefetch(self, wanted: Sequence[_OffloadedTensor]) -> None:
        """Start to copy back what is wanted; what was fetched ahead and is not wanted now gives way."""
        returning = [each for reference in self._returning if (each := reference()) is not None]
        returning = [offloaded for offloaded in returning if offloaded.device_copy is not None]
        for offloaded in wanted:
            if offloaded.source is not None or offloaded.device_copy is not None or offloaded.ready is not None:
                continue
            unwanted = [other for other in returning if other not in wanted]
            if len(returning) >= self._in_flight and unwanted:
                unwanted[0].device_copy = None
                returning.remove(unwanted[0])
            if len(returning) >= self._in_flight:
                break
            offloaded.device_copy = self.transport.start(offloaded.host_copy)
            returning.append(offloaded)
            self.stats.peak_returning = max(self.stats.peak_returning, len(returning))
        self._returning = deque(map(weakref.ref, returning))


def keep_result(result: Tensor, aliases: Sequence[Tensor] = ()) -> MovedResult | None:
    """Move a result of a block along with its inputs: of the call whose `Offloader.saving` runs this.

    `result` is a tensor of any shape and dtype, outside of the graph; the caller gives up what it has of that memory.
    `aliases` are tensors of the same memory with counts of writes of their own. None where the result stays: it is
    small or not strided, or no call is running.
    """
    call: tuple[Offloader, _Inputs] | None = getattr(_SAVING, "call", None)
    if call is None or not _is_dense(result):
        return None
    return call[0].keep(result, aliases, call[1])


_SAVING = threading.local()
"""The innermost `saving` of a thread: its offloader, and the inputs of its call."""


def _none() -> None:
    return None


def _offloader(transport: Transport, minimum_bytes: int, in_flight: int) -> Offloader:
    return Offloader(transport, minimum_bytes=minimum_bytes, in_flight=in_flight)


@dataclass(frozen=True, slots=True)
class _View:
    """How a tensor lies over the memory that is moved for it."""

    size: tuple[int, ...]
    stride: tuple[int, ...] | None
    """None where the tensor has gaps, which are not moved: only dimensions of one element are expanded then."""

    def restore(self, moved: Tensor) -> Tensor:
        return moved.expand(self.size) if self.stride is None else moved.as_strided(self.size, self.stride)


def _compact(tensor: Tensor) -> tuple[Tensor, _View]:
    """The elements that a tensor covers, each once, as a view of the same memory; and the way back."""
    size, stride = tuple(tensor.shape), tensor.stride()
    once = tensor
    for dimension, step in enumerate(stride):
        if step == 0:
            once = once.narrow(dimension, 0, 1)
    span = 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if span <= once.numel():
        return tensor.as_strided((span,), (1,)), _View(size, stride)
    return once, _View(size, None)


class _OffloadedTensor:
    """One tensor that was saved: `source` is its memory on the device, until `host_copy` is done.

    `stays` is True where the store had no room for it. `device_copy` is a copy back that was started; `ready` is what
    was fetched and the next block needs again. `aliases` count the writes to the same memory by themselves.
    """

    def __init__(self, tensor: Tensor, aliases: Sequence[Tensor] = ()) -> None:
        self.original = TensorWeakRef(tensor)
        self.version = tensor._version
        self.aliases = tuple((alias, alias._version) for alias in aliases)
        source, self.view = _compact(tensor.detach())
        self.source: Tensor | None = source
        self.bytes = source.nbytes
        self.host_copy: Any = None
        self.stays = False
        self.device_copy: Any = None
        self.ready: Tensor | None = None

    def is_of(self, tensor: Tensor) -> bool:
        """Whether it was made for this very object as it is now: ids and addresses are reused."""
        return self.original() is tensor and tensor._version == self.version

    def modified(self) -> bool:
        """Whether the tensor was written to since; aliases share the counter. False once all of them are gone."""
        counted = [(self.source, self.version), (self.original(), self.version), *self.aliases]
        return any(alias is not None and alias._version != before for alias, before in counted)


class _CallOrder:
    """The calls of blocks in a forward, until a backward begins, and the `order` in which that reaches them."""

    def __init__(self) -> None:
        self._calls: list[weakref.ref[_Inputs]] = []
        self.order: dict[int, None] = {}

    def begin(self, inputs: _Inputs) -> int:
        """The number of a call."""
        self._calls.append(weakref.ref(inputs))
        return len(self._calls) - 1

    def begin_backward(self, number: int) -> None:
        """The backward has reached a call, for the first time or again."""
        self.order.setdefault(number)

    def is_whole(self) -> bool:
        """Whether the backward has reached every call."""
        return len(self.order) == len(self._calls)

    def after(self, number: int, order: Sequence[int]) -> Sequence[_OffloadedTensor]:
        """The inputs of the call that the backward needs after this one, if an earlier step had that order."""
        following = number - 1
        if len(order) == len(self._calls):
            place = order.index(number) + 1
            following = order[place] if place < len(order) else -1
        inputs = self._calls[following]() if following >= 0 else None
        return () if inputs is None else inputs.tensors


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Inputs:
    """The moving inputs of one block's call, which is that of a `number` in its step once there are any.

    So many `results` of the call are among them.
    """

    step: _CallOrder
    number: int = -1
    tensors: list[_OffloadedTensor] = field(default_factory=list)
    results: int = 0

    def add(self, offloaded: _OffloadedTensor) -> None:
        """One more input."""
        if not self.tensors:
            self.number = self.step.begin(self)
        self.tensors.append(offloaded)


@dataclass(frozen=True, slots=True)
class _Reference:
    """What autograd keeps for a tensor that moves; `place` is that of the next one among the inputs."""

    offloaded: _OffloadedTensor
    inputs: _Inputs
    place: int


@dataclass(frozen=True, slots=True)
class MovedResult:
    """A result of a block that an offloader keeps."""

    _offloader: Offloader
    _reference: _Reference

    def tensor(self) -> Tensor:
        """The result, on its device. Raises ModifiedTensorError where it was written before it had left."""
        return self._offloader.fetch(self._reference)

    def is_written(self) -> bool:
        """Whether it was written before it had left."""
        return self._reference.offloaded.modified()


class _Kept:
    """What autograd keeps for a tensor that stays. With hooks, torch leaves it to them to check its version."""

    __slots__ = ("_alias", "_version")

    def __init__(self, tensor: Tensor) -> None:
        self._alias = tensor.detach()
        self._version = tensor._version

    def tensor(self) -> Tensor:
        if self._alias._version != self._version:
            raise ModifiedTensorError(_modified(self._alias.shape))
        return self._alias


def _modified(shape: Sequence[int]) -> str:
    return (
        f"An input of a checkpointed block, of shape {tuple(shape)}, was modified in place after it was saved for "
        "the backward. Modify a clone of it, or use an operation that is not in place."
    )


def _can_move(tensor: Tensor) -> bool:
    return _is_dense(tensor) and tensor.is_floating_point() and not isinstance(tensor._base, nn.Parameter)


def _is_dense(tensor: Tensor) -> bool:
    plain = type(tensor) in (Tensor, FakeTensor) and tensor.layout is torch.strided and tensor.device.type != "meta"
    return plain and tensor.numel() > 0
