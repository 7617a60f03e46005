"""The bytes that the forward of each block leaves on a device that counts them, and the peak.

The counters are those of torch's allocators, on the host: nothing waits for a device. A CPU has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from ckpt_surgery.guarding.steps import Phase, StepWatch
from ckpt_surgery.runtime.tools.containers import tensors
from ckpt_surgery.runtime.tools.model_hook import ModelHook


@dataclass(frozen=True, slots=True)
class KeptBytes:
    """What the forward of a block left: `kept` in all, of which `returned` are its results, which have to stay."""

    kept: int
    returned: int


class BlockMemory(StepWatch):
    """Read the counter around each call of `blocks` in the forward of one step. `kept` has those that ran."""

    def __init__(self, blocks: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.kept: dict[str, KeptBytes] = {}
        self._before: dict[str, int] = {}
        for name, block in blocks.items():
            device = _device_of(block)
            if allocated(device) is not None:
                self.handles += [
                    block.register_forward_pre_hook(ModelHook(partial(self._enter_block, name, device))),
                    block.register_forward_hook(ModelHook(partial(self._leave, name, device))),
                ]

    def _enter_block(self, name: str, device: torch.device, *_: Any) -> None:
        if self.phase is not Phase.BACKWARD:
            self._before[name] = allocated(device) or 0

    def _leave(self, name: str, device: torch.device, block: nn.Module, given: Any, output: Any) -> None:
        before = self._before.pop(name, None)
        if before is None or self.phase is Phase.BACKWARD:
            return
        results: dict[int, int] = {}
        known = {tensor.untyped_storage()._cdata for tensor in tensors(given)}
        for tensor in tensors(output):
            storage = tensor.untyped_storage()
            if storage._cdata not in known:
                results[storage._cdata] = storage.nbytes()
        self.kept[name] = KeptBytes((allocated(device) or 0) - before, sum(results.values()))


def allocated(device: torch.device) -> int | None:
    """Return the bytes that are allocated on a device; None where nobody counts them."""
    count = getattr(torch.get_device_module(device), "memory_allocated", None)
    return int(count(device)) if count is not None and device.type != "cpu" else None


def peaks(model: nn.Module) -> dict[str, int]:
    """Return the peak of allocated bytes by device of a model, since the process began or the count was reset."""
    most: dict[str, int] = {}
    for device in {parameter.device for parameter in model.parameters()}:
        count = getattr(torch.get_device_module(device), "max_memory_allocated", None)
        if count is not None and device.type not in ("cpu", "meta"):
            most[str(device)] = int(count(device))
    return most


def _device_of(block: nn.Module) -> torch.device:
    parameter = next(block.parameters(), None)
    return torch.device("cpu") if parameter is None or parameter.is_meta else parameter.device
