"""Fingerprints of what an argument or attribute holds: they show that it was written to, without a copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ckpt_surgery.model_patches.vocabulary import PAST_STATE
from ckpt_surgery.runtime.checkpoint.call_arguments import CACHE_DEPTH
from ckpt_surgery.runtime.self_check.fingerprints import Fingerprint, magnitude
from ckpt_surgery.runtime.tools.containers import hidden_tensors
from ckpt_surgery.runtime.tools.tensors import is_plain

NOISE_EPS = 16
"""The noise floor without a repeated run, in units of the dtype's eps."""
Contents = list[tuple[Fingerprint | None, float]]
"""The fingerprint and magnitude of each tensor; without a fingerprint, None and how often it was written to."""


def contents_of(value: Any) -> Contents:
    """Fingerprint each tensor in a value once. Meters do not count the memory for that."""
    contents: Contents = []
    for tensor in {id(t): t for t in hidden_tensors(value, CACHE_DEPTH)}.values():
        sums = None
        with suppress(RuntimeError, TypeError):  # some kinds of tensors lack an operator
            if is_plain(tensor) and not tensor.is_quantized:  # on other kinds, an operator may crash the process
                sums, size = Fingerprint.of(tensor), magnitude(tensor)
        contents.append((None, float(tensor._version)) if sums is None else (sums, size))
    return contents


def differ(before: Contents, after: Contents | None, *, loosely: bool = False) -> bool:
    """Tell whether two contents differ by more than rounding; None differs from every one.

    `loosely` allows up to the root of the dtype's eps, for results of a whole model.
    """
    if after is None or len(before) != len(after):
        return True
    return any(not _is_close(*ours, *theirs, loosely) for ours, theirs in zip(before, after, strict=True))


def outputs_of(output: Any, name: str = "") -> Iterator[tuple[str, Contents]]:
    """Name the float tensors in a model's output with their contents, past state left out.

    A name consists of keys, and of positions with the length of the tuple.
    """
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield name, contents_of(output)
    elif isinstance(output, Mapping):
        for key, value in output.items():
            if key not in PAST_STATE:
                yield from outputs_of(value, f"{name}.{key}".lstrip("."))
    elif isinstance(output, tuple | list):
        for index, value in enumerate(output):
            yield from outputs_of(value, f"{name}[{index} of {len(output)}]")


def other_outputs(before: Mapping[str, Contents], after: Mapping[str, Contents]) -> Iterator[str]:
    """Name the outputs that differ in value, or that have become a container of tensors."""
    for name, ours in before.items():
        theirs = after.get(name)
        if theirs is None:
            if any(other.startswith((f"{name}[", f"{name}.")) for other in after if name):
                yield name
        elif differ(ours, theirs, loosely=True):
            yield name


def _is_close(
    ours: Fingerprint | None, size: float, theirs: Fingerprint | None, other_size: float, loosely: bool
) -> bool:
    if ours is None or theirs is None:
        return ours is theirs and size == other_size
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    if ours.bits.item() == theirs.bits.item():
        return True
    if ours.values is None or theirs.values is None:
        return False
    eps = torch.finfo(ours.dtype).eps
    allowed = (sqrt(eps) if loosely else NOISE_EPS * eps) * sqrt(ours.shape.numel()) * size
    return abs(float(ours.values) - float(theirs.values)) <= allowed and abs(size - other_size) <= allowed
