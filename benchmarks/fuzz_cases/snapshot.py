"""The state of a model and of objects as flat tables of leaves, and the differences between two of them."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy
import torch
from torch import Tensor, nn

Leaves = dict[str, Any]
"""What stands at each path: a copy of a tensor, or a value that can be compared."""

GRADIENT = ".grad"
"""The end of the path to a gradient."""

_INTERNAL = frozenset(vars(nn.Module())) - {"training"}
_BLOCKS = "layers."
_PEEKED = 3
_DEEPEST = 8
_ABSENT = object()


def leaves_of(value: Any, path: str = "") -> Leaves:
    """Open any value to its leaves, through containers and objects; iterators are advanced to see what they give."""
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
        in_block = name.startswith(_BLOCKS)
        values = {**module._parameters, **module._buffers}
        values |= {k: v for k, v in vars(module).items() if k not in _INTERNAL and (name, k) not in ignored}
        for key, value in values.items():
            if not _is_ours(value):
                leaves = own if isinstance(value, nn.Parameter) or (in_block and _is_plain(value)) else held
                _collect(value, f"{name}.{key}", leaves, seen, 0)
    return own, held


def _is_plain(value: Any) -> bool:
    """Tell whether a value can only be replaced, or is a tensor."""
    if isinstance(value, tuple):
        return not any(isinstance(each, Tensor) for each in value) and all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, complex, str, bytes, Tensor, functools.partial))


def numpy_state(generator: Any) -> tuple[Any, ...]:
    """Return the state of a generator of NumPy's old kind, or of the module that has the global one."""
    name, keys, *rest = generator.get_state()
    return (name, keys.tobytes(), *rest)


def attribute_names(model: nn.Module) -> frozenset[tuple[str, str]]:
    """Yield every attribute of every module, with the module's name."""
    return frozenset((name, key) for name, module in model.named_modules() for key in vars(module))


def differences(ours: Leaves, theirs: Leaves, tolerance: float = 0.0) -> list[str]:
    """Name the paths at which two tables differ, and what is there; `tolerance` is relative to the largest element."""
    found = []
    for path in [*ours, *(path for path in theirs if path not in ours)]:
        one, other = ours.get(path, _ABSENT), theirs.get(path, _ABSENT)
        if not _same(one, other, tolerance):
            found.append(f"{path}: {_shown(one)} instead of {_shown(other)}{_distance(one, other)}")
    return found


def _same(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if one.layout == other.layout == torch.strided and torch.equal(one, other):
            return True
        largest = float(_dense(other).abs().max()) if tolerance and other.numel() else 0.0
        return torch.allclose(_dense(one), _dense(other), rtol=0, atol=tolerance * largest, equal_nan=True)
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other)
    return type(one) is type(other) and bool(one == other)


def _dense(tensor: Tensor) -> Tensor:
    tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    if isinstance(value, Tensor):
        numbers = _dense(value.detach()).reshape(-1)[:3].tolist()
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} {[f'{n:.6g}' for n in numbers]}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _distance(one: Any, other: Any) -> str:
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)) or one.shape != other.shape or not one.numel():
        return ""
    return f", {float((_dense(one) - _dense(other)).abs().max()):.3g} apart"


def _is_ours(value: Any) -> bool:
    return type(value).__module__.startswith("ckpt_surgery.")


def _collect(value: Any, path: str, leaves: Leaves, seen: set[int], depth: int) -> None:
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, bytearray)):
        leaves[path] = bytes(value) if isinstance(value, bytearray) else value
    elif isinstance(value, Tensor):
        if id(value) not in seen:
            seen.add(id(value))
            leaves[path] = value.detach().clone()
            if value.is_leaf and value.requires_grad:
                leaves[path + GRADIENT] = None if value.grad is None else value.grad.detach().clone()
    elif isinstance(value, (nn.Module, type, ModuleType)) or id(value) in seen or depth > _DEEPEST:
        leaves[path] = type(value).__name__
    else:
        seen.add(id(value))
        _collect_object(value, path, leaves, seen, depth + 1)


def _collect_object(value: Any, path: str, leaves: Leaves, seen: set[int], depth: int) -> None:
    if isinstance(value, numpy.ndarray):
        leaves[path] = (str(value.dtype), value.shape, value.tobytes())
    elif isinstance(value, Mapping):
        leaves[f"{path}.keys"] = repr(list(value))
        _collect_all(value.items(), path, leaves, seen, depth)
    elif isinstance(value, (list, tuple, deque)):
        leaves[f"{path}.length"] = len(value)
        _collect_all(enumerate(value), path, leaves, seen, depth)
    elif isinstance(value, (set, frozenset)):
        leaves[path] = repr(sorted(value, key=repr))
    elif isinstance(value, Iterator):
        _collect_all(enumerate(next(value, None) for _ in range(_PEEKED)), path, leaves, seen, depth)
    elif isinstance(value, functools.partial):
        _collect_all(enumerate((value.func, *value.args)), path, leaves, seen, depth)
    else:
        _collect_all(_attributes(value), path, leaves, seen, depth)


def _collect_all(pairs: Any, path: str, leaves: Leaves, seen: set[int], depth: int) -> None:
    for key, value in list(pairs):
        _collect(value, f"{path}.{key}", leaves, seen, depth)


def _attributes(value: Any) -> list[tuple[str, Any]]:
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [
        *getattr(value, "__dict__", {}).items(),
        *((name, getattr(value, name, None)) for name in slots if name not in ("__weakref__", "__dict__")),
    ]
