"""The state of torch's random number generators, as something to compare; and how to seed them all."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable

import torch
from torch import nn


def devices_of(model: nn.Module) -> tuple[torch.device, ...]:
    """The accelerators that parameters and buffers of a model lie on."""
    found = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    return tuple(sorted((device for device in found if device.type == "cuda"), key=str))


def generator_state(devices: Iterable[torch.device] = ()) -> bytes:
    """The state of torch's generator on the CPU and on CUDA `devices`: equal states draw equal numbers."""
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]
    return b"".join(state.numpy().tobytes() for state in states)


def seed_all(seed: int) -> None:
    """Seed torch on every device, Python, and NumPy where somebody has imported it."""
    torch.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
