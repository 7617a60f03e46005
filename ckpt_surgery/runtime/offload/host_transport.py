"""Copy between device and host memory, concurrently with compute if the device has streams."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ckpt_surgery.errors import SurgeryError
from ckpt_surgery.runtime.offload.buffer_pool import Buffer, BufferPool, PinnedPool
from ckpt_surgery.torch_names import FakeTensor


class HostTransport:
    """A transport to host memory. On devices with streams, copies overlap with compute, in buffers of a pool.

    Every method may return before its copy is done. A copy that is dropped is no longer needed.

    Each device has two separate streams, one for the way out and one for the way back. Memory is never marked with
    `record_stream`: the allocator would then reuse it only once the device, which lags far behind the host, has
    reached that point, and the peak could be as high as without offload. Instead, everything on the device belongs to
    the compute stream, which waits for a copy before the memory is freed. A buffer that comes back to the pool is
    written again only after the copies that read it.
    """

    def __init__(self, pool: BufferPool | None = None) -> None:
        self.pool = PinnedPool() if pool is None else pool
        self._streams: dict[torch.device, SideStreams | None] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.pool,)

    def put(self, source: Tensor) -> HostCopy | None:
        """Copy to the host, on a side stream if the device has streams; the caller keeps `source` until `finish`.

        Returns None if there is no room: then the tensor stays on the device.
        """
        streams = self._side_streams(source.device)
        if isinstance(source, FakeTensor) or streams is None:
            return HostCopy(torch.empty_like(source, device="cpu").copy_(source), source.device)
        buffer = self.pool.take(source.nbytes, source.device)
        if buffer is None:
            return None
        host_copy = HostCopy(buffer.laid_out_as(source), source.device, buffer, self.pool)
        host_copy.compute = streams.compute()
        streams.to_host.wait_stream(host_copy.compute)
        for event in buffer.events:
            streams.to_host.wait_event(event)
        with streams.module.stream(streams.to_host):
            host_copy.host.copy_(source, non_blocking=True)
        host_copy.done = streams.to_host.record_event()
        buffer.events = (host_copy.done,)
        return host_copy

    def finish(self, host_copy: HostCopy) -> None:
        """Make the source's stream wait for the copy; the host does not wait."""
        if host_copy.compute is not None:
            host_copy.compute.wait_event(host_copy.done)

    def start(self, host_copy: HostCopy) -> DeviceCopy:
        """Copy back, on another side stream if there is one; this can be done many times.

        Raises SurgeryError in a forked process.
        """
        host_copy.check_process()
        streams = self._side_streams(host_copy.device)
        tensor = torch.empty_like(host_copy.host, device=host_copy.device)
        if streams is None or host_copy.done is None:
            return DeviceCopy(tensor.copy_(host_copy.host))
        compute = streams.compute()
        streams.to_device.wait_stream(compute)  # the new tensor's memory may still be in use by what was queued before
        streams.to_device.wait_event(host_copy.done)
        with streams.module.stream(streams.to_device):
            tensor.copy_(host_copy.host, non_blocking=True)
        device_copy = DeviceCopy(tensor, compute, streams.to_device.record_event())
        if host_copy.buffer is not None:
            host_copy.buffer.events = (host_copy.done, device_copy.done)
        return device_copy

    def get(self, device_copy: DeviceCopy) -> Tensor:
        """Return the tensor; the current stream waits for it, the host does not."""
        streams = self._side_streams(device_copy.tensor.device)
        if streams is not None and device_copy.done is not None:
            current = streams.compute()
            current.wait_event(device_copy.done)
            if current != device_copy.compute:
                device_copy.tensor.record_stream(current)
        return device_copy.tensor

    def release(self) -> None:
        """Free idle buffers, and the others when they come back."""
        self.pool.release()

    def _side_streams(self, device: torch.device) -> SideStreams | None:
        if device not in self._streams:
            module: Any = torch.get_device_module(device)
            streams = device.type != "cpu" and hasattr(module, "Stream")
            two = (module.Stream(device), module.Stream(device)) if streams else ()
            self._streams[device] = SideStreams(module, device, *two) if two else None
        return self._streams[device]


@dataclass(frozen=True, slots=True)
class SideStreams:
    """The two side streams of one device."""

    module: Any
    device: torch.device
    to_host: Any
    to_device: Any

    def compute(self) -> Any:
        """Return the stream on which the caller computes."""
        return self.module.current_stream(self.device)


@dataclass(slots=True, eq=False)
class HostCopy:
    """A copy on the host, in a pool's buffer or in separate memory.

    With streams, `compute` is the one that its source belongs to, and `done` the event of its end.
    """

    host: Tensor
    device: torch.device
    buffer: Buffer | None = None
    pool: BufferPool | None = None
    compute: Any = None
    done: Any = None

    def check_process(self) -> None:
        """Raise SurgeryError if the buffer belongs to another process, which may have overwritten it."""
        if self.buffer is not None and self.buffer.process != os.getpid():
            raise SurgeryError(
                "a forked process ran the backward of a forward in its parent with offload: run both in one process"
            )

    def __del__(self) -> None:
        if self.buffer is not None and self.pool is not None:
            self.pool.give_back(self.buffer)


@dataclass(frozen=True, slots=True)
class DeviceCopy:
    """A copy on the device, the stream that it belongs to and the event of its end."""

    tensor: Tensor
    compute: Any = None
    done: Any = None

    def __del__(self) -> None:
        # A copy that was never fetched may still be under way: the memory must not be reused before it ends.
        if self.compute is not None:
            self.compute.wait_event(self.done)
