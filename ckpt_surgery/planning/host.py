"""Host memory for a step on shapes: what is moved there is gone from the device, and comes back as a new tensor."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class _HostShape:
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    empty: Tensor
    """Of its class, dtype and device, without elements."""


class HostWithoutData:
    """A transport of an `Offloader` that remembers what it was given by shape, and allocates nothing for it."""

    def put(self, source: Tensor) -> _HostShape:
        """The shape of `source`."""
        return _HostShape(tuple(source.shape), source.stride(), source.new_empty(0))

    def finish(self, host_copy: _HostShape) -> None:
        """Nothing is under way."""

    def start(self, host_copy: _HostShape) -> Tensor:
        """A new tensor of that shape on the device."""
        return host_copy.empty.new_empty_strided(host_copy.shape, host_copy.stride)

    def get(self, device_copy: Tensor) -> Tensor:
        """The tensor that was made for it."""
        return device_copy

    def release(self) -> None:
        """Nothing is held."""
