"""What the whole process shares and a block may depend on: generators of Python and numpy, choices of kernels."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

GeneratorStates = tuple[Any, Any]
"""The states of Python's and numpy's global generators; None where numpy was not imported."""

_KERNELS = ("flash", "mem_efficient", "math", "cudnn")
_READ = [read for name in _KERNELS if (read := getattr(torch.backends.cuda, f"{name}_sdp_enabled", None)) is not None]
_SET = [
    getattr(torch.backends.cuda, f"enable_{name}_sdp")
    for name in _KERNELS
    if hasattr(torch.backends.cuda, f"{name}_sdp_enabled")
]


def generator_states() -> GeneratorStates:
    """The states of the generators that torch's checkpointing does not restore."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), numpy.random.get_state() if numpy else None


def set_generator_states(states: GeneratorStates) -> None:
    """Put the generators back."""
    python, numpy = states
    random.setstate(python)
    if numpy is not None:
        sys.modules["numpy"].random.set_state(numpy)


def drawn_since(states: GeneratorStates) -> bool:
    """Whether somebody has drawn from one of the generators."""
    python, numpy = states
    if random.getstate() != python:
        return True
    if numpy is None:
        return False
    now = sys.modules["numpy"].random.get_state()
    return bool(now[2:] != numpy[2:] or (now[1] != numpy[1]).any())


def attention_kernels() -> tuple[bool, ...]:
    """Which kernels of scaled dot-product attention are allowed."""
    return tuple([read() for read in _READ])


@contextmanager
def allowing_kernels(kernels: tuple[bool, ...]) -> Iterator[None]:
    """Inside, these kernels are allowed, as they were when `attention_kernels` was read."""
    now = attention_kernels()
    for enable, value in zip(_SET, kernels, strict=True):
        enable(value)
    try:
        yield
    finally:
        for enable, value in zip(_SET, now, strict=True):
            enable(value)
