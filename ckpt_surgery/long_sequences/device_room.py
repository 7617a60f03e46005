"""A budget of device memory for inputs of blocks: those that fit in it need not wait on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakSet


class DeviceRoom:
    """A budget of `bytes` for all blocks of a model. A copy has a separate one."""

    def __init__(self, bytes: int) -> None:
        self.bytes = bytes
        self._taken: WeakSet[RoomTaken] = WeakSet()

    def __reduce__(self) -> tuple[Any, ...]:
        return DeviceRoom, (self.bytes,)

    def take(self, bytes: int) -> RoomTaken | None:
        """Reserve this many bytes until the returned object is deleted; None if fewer are left."""
        if bytes > self.bytes - sum(taken.bytes for taken in self._taken):
            return None
        taken = RoomTaken(bytes)
        self._taken.add(taken)
        return taken


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class RoomTaken:
    """Bytes of a budget, held until this is deleted."""

    bytes: int
