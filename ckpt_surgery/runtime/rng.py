"""The state of torch's random number generators, and whether a block draws from them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd


def devices_of(model: nn.Module) -> tuple[torch.device, ...]:
    """The accelerators that parameters and buffers of a model lie on."""
    found = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    return tuple(sorted((device for device in found if device.type == "cuda"), key=str))


def generator_state(devices: Iterable[torch.device] = ()) -> bytes:
    """The state of torch's generator on the CPU and on accelerators: equal states draw equal numbers."""
    others = [torch.get_device_module(device).get_rng_state(device) for device in devices]
    return b"".join(state.cpu().numpy().tobytes() for state in (torch.get_rng_state(), *others))


def active_dropout(block: nn.Module) -> str:
    """The name of the first thing in a block that drops or jitters at random: a module, or a rate of one."""
    for name, module in block.named_modules():
        if isinstance(module, _DropoutNd):
            if module.p > 0:
                return name or type(module).__name__
            continue
        for attribute, value in vars(module).items():
            if ("drop" in attribute or "jitter" in attribute) and isinstance(value, float) and value > 0:
                return f"{name}.{attribute}" if name else attribute
    return ""
