"""Read, compare and restore the states of random number generators, and find out whether a block draws."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ctypes import string_at
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ckpt_surgery.torch_names import DropoutNd

_MERSENNE_BYTES = 4 * 624 + 4  # 624 words, and the index of the next one


@dataclass(frozen=True, slots=True)
class GeneratorStates:
    """The states of the global generators of Python and numpy, and the raw memory of numpy's if it can be read.

    Reading that memory is a hundred times as fast as asking numpy for its state.
    """

    python: Any
    numpy: Any
    memory: bytes | None

    @classmethod
    def now(cls, *, exact: bool = True) -> GeneratorStates:
        """Read the states of the generators that torch's checkpointing does not restore.

        Unless `exact`, numpy's state is taken from the last call if its memory is the same and it had no normal number
        in reserve, which would be outside that memory.
        """
        global _latest
        memory = _numpy_memory()
        known = memory is not None and memory == _latest.memory and not exact and not _latest.numpy["has_gauss"]
        _latest = cls(random.getstate(), _latest.numpy if known else _numpy_state(), memory)
        return _latest

    def restore(self) -> None:
        """Put the generators back into these states."""
        global _latest
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
            _latest = self

    def drawn_since(self) -> bool:
        """Tell whether any of these generators has been drawn from since."""
        (_, words, normal), (_, before_words, before_normal) = random.getstate(), self.python
        if words[-1] != before_words[-1] or normal != before_normal or words[:8] != before_words[:8]:
            return True  # the last of the words is the index of the next: it only stays if all are new
        if self.memory is not None and not self.numpy["has_gauss"]:
            return _numpy_memory() != self.memory
        return self.numpy is not None and not _same(_numpy_state(), self.numpy)


_latest = GeneratorStates(None, None, None)


def _numpy_state() -> Any:
    numpy = sys.modules.get("numpy")
    return numpy.random.get_state(legacy=False) if numpy else None


def _numpy_memory() -> bytes | None:
    """Read the memory of numpy's generator; None without numpy, or if it is not the default Mersenne twister."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy.random, "get_bit_generator"):
        return None
    generator = numpy.random.get_bit_generator()
    if type(generator) is not numpy.random.MT19937:
        return None
    return string_at(generator.ctypes.state_address, _MERSENNE_BYTES)


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(_same(value, theirs[key]) for key, value in ours.items())
    return bool(sys.modules["numpy"].array_equal(ours, theirs))


TorchStates = dict[torch.device, torch.Tensor]
"""The states of torch's generators, by their devices."""


def torch_states(devices: Iterable[torch.device]) -> TorchStates:
    """Read the states of torch's generators on the CPU and on `devices`."""
    others = {device: torch.get_device_module(device).get_rng_state(device) for device in devices}
    return {torch.device("cpu"): torch.get_rng_state(), **others}


def generator_state(devices: Iterable[torch.device] = ()) -> bytes:
    """Read the states of torch's generators as bytes: equal ones draw equal numbers."""
    return b"".join(state.cpu().numpy().tobytes() for state in torch_states(devices).values())


@contextmanager
def torch_states_kept(states: TorchStates) -> Iterator[None]:
    """Run torch's generators from `states` inside the `with`, and restore their present states on exit."""
    now = torch_states(device for device in states if device.type != "cpu")
    set_torch_states(states)
    try:
        yield
    finally:
        set_torch_states(now)


def set_torch_states(states: TorchStates) -> None:
    """Set torch's generators to `states`."""
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
