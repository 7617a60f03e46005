"""Measure the bytes that the forward of each block leaves on a device that counts them, and the peak.

The counters are those of torch's allocators, on the host: nothing waits for a device. A CPU has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ckpt_surgery.guarding.steps import StepWatch, WatchedPhase
from ckpt_surgery.measure.model_hook import ModelHook
from ckpt_surgery.runtime.tools.containers import tensors


@dataclass(frozen=True, slots=True)
class LeftBytes:
    """The bytes that a block's forward left allocated: all that is `kept`, of which `returned` are its results."""

    kept: int
    returned: int


class BlockMemory(StepWatch):
    """The counter's readings around each call of `blocks` in the forward of one step; `kept` holds those that ran."""

    def __init__(self, blocks: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.kept: dict[str, LeftBytes] = {}
        self._before: dict[str, int] = {}
        for name, block in blocks.items():
            device = next((parameter.device for parameter in block.parameters()), torch.device("cpu"))
            if allocated(device) is not None:
                self._handles += [
                    block.register_forward_pre_hook(ModelHook(partial(self._enter_block, name, device))),
                    block.register_forward_hook(ModelHook(partial(self._leave, name, device))),
                ]

    def _enter_block(self, name: str, device: torch.device, *_: Any) -> None:
        if self.phase is not WatchedPhase.BACKWARD:
            self._before[name] = allocated(device) or 0

    def _leave(self, name: str, device: torch.device, block: nn.Module, given: Any, output: Any) -> None:
        before = self._before.pop(name, None)
        if before is None or self.phase is WatchedPhase.BACKWARD:
            return
        storages, known = (
            {s._cdata: s for s in map(Tensor.untyped_storage, tensors(each))} for each in (output, given)
        )
        returned = sum(storage.nbytes() for place, storage in storages.items() if place not in known)
        self.kept[name] = LeftBytes((allocated(device) or 0) - before, returned)


def allocated(device: torch.device, what: str = "memory_allocated") -> int | None:
    """Return the bytes allocated on a device, or another count of torch; None if the device has no counts."""
    count = None if device.type in ("cpu", "meta") else getattr(torch.get_device_module(device), what, None)
    return None if count is None else int(count(device))


def peaks(model: nn.Module) -> dict[str, int]:
    """Return the peak of allocated bytes on each device of a model, since the process began or the count was reset."""
    devices = {parameter.device for parameter in model.parameters()}
    return {str(device): peak for device in devices if (peak := allocated(device, "max_memory_allocated")) is not None}
