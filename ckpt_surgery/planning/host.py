"""Host memory for a step on shapes: what moves there leaves the device, and comes back as a new tensor."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class _HostShape:
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    empty: Tensor
    """An empty tensor of the same class, dtype and device."""


class HostWithoutData:
    """A transport of an `Offloader` that remembers shapes, and allocates nothing on the host."""

    def put(self, source: Tensor) -> _HostShape:
        """Remember the shape of `source`."""
        return _HostShape(tuple(source.shape), source.stride(), source.new_empty(0))

    def finish(self, host_copy: _HostShape) -> None:
        """Do nothing: no copy is under way."""

    def start(self, host_copy: _HostShape) -> Tensor:
        """Make a new tensor of that shape on the device."""
        return host_copy.empty.new_empty_strided(host_copy.shape, host_copy.stride)

    def get(self, device_copy: Tensor) -> Tensor:
        """Return the tensor that `start` made."""
        return device_copy

    def release(self) -> None:
        """Do nothing: no memory is held."""
