"""Keep the tokens of a tensor in host memory, tile by tile, until they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ckpt_surgery.runtime.offload.host_transport import HostTransport


class ParkedTiles:
    """The tiles of one tensor (batch, tokens, ...), each on the host, or left in place if there is no room.

    Call `finish` before the memory of what was put is used for something else.
    """

    def __init__(self, transport: HostTransport) -> None:
        self._transport = transport
        self._copies: list[Any] = []
        self._sources: list[Tensor | None] = []
        self._coming: tuple[int, Any] | None = None

    def put(self, tile: Tensor) -> None:
        """Start to move the next tile, and finish the one before."""
        self.finish()
        self._copies.append(self._transport.put(tile))
        self._sources.append(tile)

    def put_all(self, values: Tensor, parts: Sequence[slice]) -> None:
        """Start to move all tiles of a tensor, which its owner keeps until `finish`."""
        for part in parts:
            self._copies.append(self._transport.put(values[:, part]))
            self._sources.append(values[:, part])

    def finish(self) -> None:
        """Wait for the copies under way, and drop the tiles that have moved."""
        for index, (copy, source) in enumerate(zip(self._copies, self._sources, strict=True)):
            if source is not None and copy is not None:
                self._transport.finish(copy)
                self._sources[index] = None

    def read(self, index: int) -> Tensor:
        """Return a tile on its device, and start to bring the next one."""
        coming, self._coming = self._coming, None
        if index + 1 < len(self._copies) and self._copies[index + 1] is not None:
            self._coming = index + 1, self._transport.start(self._copies[index + 1])
        if self._copies[index] is None:
            source = self._sources[index]
            assert source is not None
            return source
        on_its_way = coming[1] if coming and coming[0] == index else self._transport.start(self._copies[index])
        return self._transport.get(on_its_way)

    def whole(self, parts: Sequence[slice]) -> Tensor:
        """Return all tiles as one tensor on the device."""
        first = self.read(0)
        whole = first.new_empty((first.shape[0], parts[-1].stop, *first.shape[2:]))
        for index, part in enumerate(parts):
            whole[:, part] = first if index == 0 else self.read(index)
        return whole
