"""Count the room on the device for inputs of blocks, which need not wait on the host as long as they fit."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any


class DeviceRoom:
    """A budget of `bytes` for all blocks of a model. A copy has a separate one."""

    def __init__(self, bytes: int) -> None:
        self.bytes = bytes
        self._left = bytes
        self._lock = threading.Lock()  # a backward ends on a thread of its own

    def __reduce__(self) -> tuple[Any, ...]:
        return DeviceRoom, (self.bytes,)

    def take(self, bytes: int) -> RoomTaken | None:
        """Take so many until what is returned goes; None where there are not as many left."""
        with self._lock:
            if bytes > self._left:
                return None
            self._left -= bytes
        return RoomTaken(self, bytes)

    def give_back(self, bytes: int) -> None:
        """Have so many more again."""
        with self._lock:
            self._left += bytes


@dataclass(frozen=True, slots=True)
class RoomTaken:
    """Bytes of a room, held until this is deleted."""

    room: DeviceRoom
    bytes: int

    def __del__(self) -> None:
        self.room.give_back(self.bytes)
