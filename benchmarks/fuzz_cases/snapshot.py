"""The state of a model and of objects as flat tables of leaves, and the differences between two of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

Leaves = dict[str, Any]
"""What stands at each path: a copy of a tensor, or a value that can be compared."""

GRADIENT = ".grad"
"""The end of the path to a gradient."""

_INTERNAL = frozenset(vars(nn.Module())) - {"training"}
_PLAIN = (bool, int, float, str, bytes)
_DEEPEST = 8
_ABSENT = object()


def leaves_of(value: Any, path: str = "") -> Leaves:
    """Open any value to its leaves, through containers and objects."""
    leaves: Leaves = {}
    _collect(value, path, leaves, set(), 0)
    return leaves


def model_leaves(model: nn.Module, ignored: frozenset[tuple[str, str]] = frozenset()) -> tuple[Leaves, Leaves]:
    """Return the state of a model in two tables: what a recompute has to leave alone, and what it may write twice.

    To the first belong parameters, and of the modules of blocks buffers, modes, and attributes that are numbers, texts
    or tensors. `ignored` are pairs of module and attribute.
    """
    own: Leaves = {}
    held: Leaves = {}
    seen: set[int] = set()
    for name, module in model.named_modules():
        values = {**module._parameters, **module._buffers}
        values |= {k: v for k, v in vars(module).items() if k not in _INTERNAL and (name, k) not in ignored}
        for key, value in values.items():
            if not type(value).__module__.startswith("ckpt_surgery."):
                plain = name.startswith("layers.") and (value is None or isinstance(value, (*_PLAIN, Tensor)))
                leaves = own if isinstance(value, nn.Parameter) or plain else held
                _collect(value, f"{name}.{key}", leaves, seen, 0)
    return own, held


def attribute_names(model: nn.Module) -> frozenset[tuple[str, str]]:
    """Yield every attribute of every module, with the module's name."""
    return frozenset((name, key) for name, module in model.named_modules() for key in vars(module))


def differences(ours: Leaves, theirs: Leaves, tolerance: float = 0.0) -> list[str]:
    """Name the paths at which two tables differ, and what is there; `tolerance` is relative to the largest element."""
    found = []
    for path in [*ours, *(path for path in theirs if path not in ours)]:
        one, other = ours.get(path, _ABSENT), theirs.get(path, _ABSENT)
        if not _same(one, other, tolerance):
            found.append(f"{path}: {_shown(one)} instead of {_shown(other)}")
    return found


def _same(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        largest = float(other.double().abs().max()) if tolerance and other.numel() else 0.0
        return torch.allclose(one.double(), other.double(), rtol=0, atol=tolerance * largest, equal_nan=True)
    return type(one) is type(other) and bool(one == other or (one != one and other != other))


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    if isinstance(value, Tensor):
        numbers = value.double().reshape(-1)[:3].tolist()
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} {[f'{n:.6g}' for n in numbers]}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _collect(value: Any, path: str, leaves: Leaves, seen: set[int], depth: int) -> None:
    if value is None or isinstance(value, _PLAIN):
        leaves[path] = value
        return
    if isinstance(value, (nn.Module, type, ModuleType)) or id(value) in seen or depth > _DEEPEST:
        if not isinstance(value, Tensor):
            leaves[path] = type(value).__name__
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        leaves[path] = value.detach().clone()
        if value.is_leaf and value.requires_grad:
            leaves[path + GRADIENT] = None if value.grad is None else value.grad.detach().clone()
        return
    pairs: Iterable[tuple[Any, Any]]
    if isinstance(value, Mapping):
        leaves[f"{path}.keys"] = repr(list(value))
        pairs = value.items()
    elif isinstance(value, (list, tuple)):
        leaves[f"{path}.length"] = len(value)
        pairs = enumerate(value)
    elif isinstance(value, (set, frozenset)):
        pairs = enumerate(sorted(value, key=repr))
    else:
        pairs = getattr(value, "__dict__", {}).items()
    for key, each in list(pairs):
        _collect(each, f"{path}.{key}", leaves, seen, depth + 1)
