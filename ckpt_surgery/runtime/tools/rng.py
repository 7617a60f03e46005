"""The states of random number generators: read, compare and restore them; and tell whether a block draws."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ckpt_surgery.torch_names import DropoutNd

GeneratorStates = tuple[Any, Any]
"""The states of Python's and numpy's global generators; None where numpy was not imported."""


def generator_states() -> GeneratorStates:
    """Read the states of the generators that torch's checkpointing does not restore."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), numpy.random.get_state() if numpy else None


def set_generator_states(states: GeneratorStates) -> None:
    """Put the generators back."""
    python, numpy = states
    random.setstate(python)
    if numpy is not None:
        sys.modules["numpy"].random.set_state(numpy)


def drawn_since(states: GeneratorStates) -> bool:
    """Tell whether somebody has drawn from one of the generators."""
    python, numpy = states
    if random.getstate() != python:
        return True
    if numpy is None:
        return False
    now = sys.modules["numpy"].random.get_state()
    return bool(now[2:] != numpy[2:] or (now[1] != numpy[1]).any())


TorchStates = dict[torch.device, torch.Tensor]
"""The states of torch's generators, by their devices."""


def torch_states(devices: Iterable[torch.device]) -> TorchStates:
    """Read the states of torch's generators on the CPU and on `devices`."""
    others = {device: torch.get_device_module(device).get_rng_state(device) for device in devices}
    return {torch.device("cpu"): torch.get_rng_state(), **others}


def generator_state(devices: Iterable[torch.device] = ()) -> bytes:
    """Read the same as bytes: equal ones draw equal numbers."""
    return b"".join(state.cpu().numpy().tobytes() for state in torch_states(devices).values())


@contextmanager
def torch_states_kept(states: TorchStates) -> Iterator[None]:
    """Let torch's generators begin with `states` inside; afterwards they are as they are now."""
    now = torch_states(device for device in states if device.type != "cpu")
    set_torch_states(states)
    try:
        yield
    finally:
        set_torch_states(now)


def set_torch_states(states: TorchStates) -> None:
    """Let torch's generators go on from `states`."""
    for device, state in states.items():
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)


def active_dropout(block: nn.Module) -> str | None:
    """Name the first module or rate in `block` that drops or jitters at random; None if there is none."""
    for name, module in block.named_modules():
        if isinstance(module, DropoutNd):
            if module.p > 0:
                return name or type(module).__name__
            continue
        for attribute, value in vars(module).items():
            if ("drop" in attribute or "jitter" in attribute) and isinstance(value, float) and value > 0:
                return f"{name}.{attribute}" if name else attribute
    return None
