"""Seed random number generators of all kinds, save their states, and find their devices."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ckpt_surgery.runtime.tools.rng import GeneratorStates


def seed_all(seed: int) -> None:
    """Seed torch on every device, Python, and NumPy if it is imported."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # without an accelerator, that would only record the call stack, which is slow
        torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)


@contextmanager
def random_state_kept(devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Restore the generators on exit, also after an exception.

    They are torch's on the CPU and on those of `devices` that are CUDA devices, Python's, and NumPy's if it was
    imported on entry: a generator that nobody imported cannot have been used.
    """
    states = GeneratorStates.now()
    try:
        with torch.random.fork_rng(devices=[device for device in devices if device.type == "cuda"]):
            yield
    finally:
        states.restore()


def own_generators(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the generators that are attributes of modules, with the full names of the attributes."""
    numpy = sys.modules.get("numpy")
    kinds = (torch.Generator, random.Random, *([numpy.random.Generator] if numpy else []))
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, kinds):
                yield f"{path}.{name}" if path else name, value


def state_of(generator: Any) -> Any:
    """Read the state of a generator of any kind; equal ones have equal `repr`, and draw equal numbers."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().tolist()
    return generator.getstate() if isinstance(generator, random.Random) else generator.bit_generator.state


def set_state(generator: Any, state: Any) -> None:
    """Set the state of a generator of any kind."""
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.tensor(state, dtype=torch.uint8))
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.bit_generator.state = state


def devices_of(model: nn.Module) -> tuple[torch.device, ...]:
    """List the CUDA devices of the parameters and buffers of a model, in the order of their names."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # then no tensor is on one
        return ()
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    return tuple(sorted((device for device in devices if device.type == "cuda"), key=str))
