"""A store of an offloader that logs its calls, on the CPU. `late_copies` has one whose copies are late."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ckpt_surgery.runtime.offload.host_transport import HostTransport


class Recorded(HostTransport):
    """A transport that copies at once, out of torch's memory, and logs every call with the number of the put."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.copying: set[int] = set()
        self._puts = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Recorded, ()

    def put(self, source: Tensor) -> Any:
        number, self._puts = self._puts, self._puts + 1
        self.copying.add(number)
        self.calls.append(f"put {number}")
        return number, source.numpy().copy(order="K")

    def finish(self, host_copy: Any) -> None:
        self.copying.discard(host_copy[0])
        self.calls.append(f"finish {host_copy[0]}")

    def start(self, host_copy: Any) -> Any:
        self.calls.append(f"start {host_copy[0]}")
        return host_copy

    def get(self, device_copy: Any) -> Tensor:
        self.calls.append(f"get {device_copy[0]}")
        return torch.from_numpy(device_copy[1].copy(order="K"))

    def release(self) -> None:
        self.calls.append("release")
