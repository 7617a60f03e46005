"""A budget of device memory for inputs of blocks: those that fit in it need not wait on the host."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any


class DeviceRoom:
    """A budget of `bytes` for all blocks of a model. A copy has a separate one."""

    def __init__(self, bytes: int) -> None:
        self.bytes = bytes
        self._left = bytes
        self._lock = threading.Lock()  # a backward may end on another thread

    def __reduce__(self) -> tuple[Any, ...]:
        return DeviceRoom, (self.bytes,)

    def take(self, bytes: int) -> RoomTaken | None:
        """Reserve this many bytes until the returned object is deleted; None if fewer are left."""
        with self._lock:
            if bytes > self._left:
                return None
            self._left -= bytes
        return RoomTaken(self, bytes)

    def give_back(self, bytes: int) -> None:
        """Return reserved bytes to the budget."""
        with self._lock:
            self._left += bytes


@dataclass(frozen=True, slots=True)
class RoomTaken:
    """Bytes of a budget, held until this is deleted."""

    room: DeviceRoom
    bytes: int

    def __del__(self) -> None:
        self.room.give_back(self.bytes)
