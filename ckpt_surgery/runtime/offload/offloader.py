"""Keep block inputs in host memory between forward and backward, through autograd's hooks for saved tensors.

The caller says which tensors are a block's inputs, and which of its results are kept with them; torch does the
checkpointing.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ckpt_surgery.errors import ModifiedTensorError
from ckpt_surgery.runtime.offload.host_transport import HostTransport
from ckpt_surgery.runtime.offload.offloaded_tensor import (
    CallInputs,
    CallOrder,
    OffloadedTensor,
    StayingTensor,
    can_move,
    is_dense,
    modified_message,
)
from ckpt_surgery.runtime.tools.error_policy import ErrorPolicy

_SAVING = threading.local()
"""The innermost `saving` of a thread, as `call`: its offloader, and the inputs of its call."""


@dataclass(slots=True)
class OffloadStats:
    """Counts of an offloader's work so far.

    Of the block inputs that were saved, and of the results that were kept with them, `tensors` left the device,
    `bytes` in total; `deduplicated` were already saved for another block; and `kept` stayed: those of the last call in
    each forward, parameters, small ones, and those for which there was `no_room`. At most `peak_in_flight` copies were
    on their way from the device at once. Of the tensors that the backward `fetched`, `prefetched` were on their way
    before it asked for them; at most `peak_returning` were on their way at once.
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
    those of the last block never move. They come back one block ahead: in the order of the last whole step if this
    one has as many block calls, otherwise in the reverse order of the forward. It keeps nothing alive: what was saved
    lives as long as the graph. Copies and pickles have its options, and nothing that it has saved. `error_policy` says
    whether a failure to move a tensor is raised; the tensor then stays.

    Args:
        transport: takes the tensors to their store; by default host memory.
        minimum_bytes: smaller tensors stay.
        in_flight: the most tensors on their way at once, in each direction: before another one leaves, the oldest is
            waited for. Of a call with kept results, as many more may leave at once as it has results.
    """

    def __init__(self, transport: HostTransport | None = None, minimum_bytes: int = 1024, in_flight: int = 2) -> None:
        self.stats = OffloadStats()
        self.transport = HostTransport() if transport is None else transport
        self.error_policy = ErrorPolicy()
        self._minimum_bytes = minimum_bytes
        self.in_flight = in_flight
        # on an accelerator, the forward runs on the caller's thread and the backward on autograd's
        self._lock = threading.Lock()
        self._known: weakref.WeakValueDictionary[int, OffloadedTensor] = weakref.WeakValueDictionary()
        self._copying: deque[weakref.ref[OffloadedTensor]] = deque()
        self._returning: deque[weakref.ref[OffloadedTensor]] = deque()
        self._newest: Callable[[], CallInputs | None] = lambda: None
        self._step = CallOrder()
        self._order: tuple[int, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return Offloader, (self.transport, self._minimum_bytes, self.in_flight)

    def release(self) -> None:
        """Free the memory that the transport holds for later steps; saved tensors stay until their graph ends."""
        with self._lock:
            self.transport.release()

    @contextmanager
    def saving(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Move those of `tensors` that autograd saves inside; whatever else it saves stays.

        `tensors` are the positional tensors with gradient of one `torch.utils.checkpoint.checkpoint` call, of any
        shape and floating dtype; the call is the body of the `with`. Only strided tensors of class Tensor move: no
        parameters, no views of parameters, no subclasses but torch's fake tensors. The backward raises
        ModifiedTensorError where a tensor that was saved here was modified in place afterwards.
        """
        if not torch.is_grad_enabled() or self.error_policy.reported:
            yield
            return
        with self._lock, torch.no_grad():
            newest = self._newest()
            if newest is not None:
                with self.error_policy:
                    self._send(newest.tensors, self.in_flight + newest.results)
            if self._step.order:  # its backward has begun
                self._step = CallOrder()
            inputs = CallInputs(self._step)
        given = list(tensors)
        outer = getattr(_SAVING, "call", None)
        _SAVING.call = self, inputs

        # torch passes the very object that was given to the checkpoint, for leaves and results alike, for it saves
        # before it sets its own hooks. Were it ever an alias instead, it would stay on the device: more memory, never
        # a wrong value.
        def pack(tensor: Tensor) -> StayingTensor | MovedTensor:
            moves = any(tensor is value for value in given)
            if moves:
                with self.error_policy:
                    return self._save(tensor, inputs)
            return StayingTensor(tensor)

        try:
            with saved_tensors_hooks(pack, methodcaller("tensor")):
                yield
        finally:
            _SAVING.call = outer
            given.clear()  # autograd holds `pack` as long as the tensors that it packed

    def keep(
        self, result: Tensor, aliases: Sequence[Tensor], inputs: CallInputs, returned: Tensor | None
    ) -> MovedTensor | None:
        """Move a result as `keep_result` says; `inputs` are those of its call."""
        with self.error_policy, self._lock, torch.no_grad():
            if returned is None:
                offloaded = OffloadedTensor(result, aliases)
            else:
                offloaded = OffloadedTensor(returned, (*aliases, result))
            if offloaded.bytes < self._minimum_bytes:
                return None
            self.stats.kept += 1
            if returned is None:
                inputs.add(offloaded)
                inputs.results += 1
                self._newest = weakref.ref(inputs)
            else:
                inputs.begin()
                self._known[id(returned)] = offloaded
            return MovedTensor(self, offloaded, inputs, len(inputs.tensors))
        return None

    def _save(self, tensor: Tensor, inputs: CallInputs) -> StayingTensor | MovedTensor:
        with self._lock, torch.no_grad():
            offloaded = self._known.get(id(tensor))
            if offloaded is not None and offloaded.is_of(tensor):
                self.stats.deduplicated += 1
            else:
                self.stats.kept += 1
                offloaded = OffloadedTensor(tensor) if can_move(tensor) else None
                if offloaded is None or offloaded.bytes < self._minimum_bytes:
                    return StayingTensor(tensor)
                self._known[id(tensor)] = offloaded
            inputs.add(offloaded)
            self._newest = weakref.ref(inputs)
            return MovedTensor(self, offloaded, inputs, len(inputs.tensors))

    def _send(self, tensors: Sequence[OffloadedTensor], most: int) -> None:
        for offloaded in tensors:
            if offloaded.host_copy is not None or offloaded.source is None or offloaded.stays:
                continue  # also the input of an earlier block
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

    def _wait_for(self, most: int, needed: Sequence[OffloadedTensor] = ()) -> None:
        """Wait for the oldest copies until at most `most` are in flight, skipping those `needed` here soon."""
        copying = [offloaded for reference in self._copying if (offloaded := reference()) is not None]
        waited = [offloaded for offloaded in copying if offloaded not in needed][: max(len(copying) - most, 0)]
        # forgotten before one of them fails, or the next step would fail for it again
        self._copying = deque(weakref.ref(offloaded) for offloaded in copying if offloaded not in waited)
        for offloaded in waited:
            self.transport.finish(offloaded.host_copy)
            # A source that was written to during its copy stays, so that the backward sees it and raises.
            if not offloaded.modified():
                offloaded.source, offloaded.aliases = None, ()

    def fetch(self, moved: MovedTensor) -> Tensor:
        """Return a tensor on its device, and start to fetch what the backward will probably need next."""
        with self._lock, torch.no_grad():
            offloaded, inputs = moved.offloaded, moved.inputs
            if inputs.step.reach(inputs.number):
                self._order = tuple(inputs.step.order)
            # the other inputs of this call, and those of the next one
            following = [*inputs.tensors[moved.following :], *inputs.step.after(inputs.number, self._order)]
            with self.error_policy:
                self._wait_for(0, [offloaded, *following])
            tensor = self._fetch(offloaded)
            if offloaded in following and offloaded.source is None:
                offloaded.ready = tensor
            with self.error_policy:
                self._prefetch(following)
            return offloaded.view.restore(tensor)

    def _fetch(self, offloaded: OffloadedTensor) -> Tensor:
        if offloaded.modified():
            raise ModifiedTensorError(modified_message(offloaded.view.size))
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

    def _prefetch(self, wanted: Sequence[OffloadedTensor]) -> None:
        """Start to copy back what is wanted; copies fetched ahead that are not wanted any more make room."""
        returning = [each for reference in self._returning if (each := reference()) is not None]
        returning = [offloaded for offloaded in returning if offloaded.device_copy is not None]
        for offloaded in wanted:
            if offloaded.source is not None or offloaded.device_copy is not None or offloaded.ready is not None:
                continue
            unwanted = [other for other in returning if other not in wanted]
            if len(returning) >= self.in_flight and unwanted:
                unwanted[0].device_copy = None
                returning.remove(unwanted[0])
            if len(returning) >= self.in_flight:
                break
            offloaded.device_copy = self.transport.start(offloaded.host_copy)
            returning.append(offloaded)
            self.stats.peak_returning = max(self.stats.peak_returning, len(returning))
        self._returning = deque(map(weakref.ref, returning))


@dataclass(frozen=True, slots=True)
class MovedTensor:
    """A tensor held by an offloader, for autograd or for `save`; `following` is the index of the next input."""

    offloader: Offloader
    offloaded: OffloadedTensor
    inputs: CallInputs
    following: int

    def tensor(self) -> Tensor:
        """Return the tensor on its device. Raises ModifiedTensorError if it was written before it left."""
        return self.offloader.fetch(self)

    def is_written(self) -> bool:
        """Tell whether it was written before it left."""
        return self.offloaded.modified()


def keep_result(result: Tensor, aliases: Sequence[Tensor] = (), returned: Tensor | None = None) -> MovedTensor | None:
    """Move a result kept in a block, without its graph, along with the block's inputs; return what holds it.

    Returns None if it stays: it is small or not strided, no `Offloader.saving` is active, or the block has `returned`
    its memory as another view. A result that is returned moves as an input of the next block, once for both. `aliases`
    are tensors of the same memory with version counters of their own.
    """
    call: tuple[Offloader, CallInputs] | None = getattr(_SAVING, "call", None)
    if call is None or not is_dense(result):
        return None
    if returned is not None:
        form, other = ((type(t), t.dtype, t.shape, t.stride(), t.storage_offset()) for t in (result, returned))
        if form != other or not can_move(result):
            return None
    return call[0].keep(result, aliases, call[1], returned)
