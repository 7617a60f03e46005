"""The calls of a few operators in a block, seen by torch's dispatcher above autograd.

Each operator has a kernel at a dispatch key that torch itself has for its tests. A guard includes the key while a block
runs, in its thread: other operators fall through it, no function is replaced, and outside of a block nothing is seen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache, partial
from threading import local
from typing import Any, Protocol

import torch
from torch.library import Library, fallthrough_kernel

from ckpt_surgery.torch_names import (
    ExcludeDispatchKey,
    IncludeDispatchKey,
    has_kernel,
    higher_order_operators,
    keys_after,
    parse_dispatch_key,
    passed_by_higher_order,
)

_NAME = "TESTING_ONLY_GenericMode"
_KEY = parse_dispatch_key(_NAME)
_BELOW = keys_after(_KEY)
_AUTOCAST = ("AutocastCPU", "AutocastCUDA", "AutocastXPU")
_now = local()


class Watcher(Protocol):
    """What is told of each call of its `operators`, and returns what that returns."""

    operators: Collection[Any]

    def call(self, operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of a call."""


class Watching:
    """Inside, in this thread, `watcher` is asked for the results of watched operators."""

    __slots__ = ("_guard", "_outer", "_watcher")

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def __enter__(self) -> None:
        self._outer = getattr(_now, "watcher", None)
        _now.watcher = self._watcher
        self._guard = IncludeDispatchKey(_KEY)
        self._guard.__enter__()

    def __exit__(self, *error: object) -> None:
        self._guard.__exit__(*error)
        _now.watcher = self._outer


def unwatched() -> Any:
    """Return a context in which no call is seen."""
    return ExcludeDispatchKey(_KEY, True)


def watch(operators: Iterable[Any]) -> None:
    """Have calls of these operators seen, wherever a watcher is there."""
    for operator in operators:
        _watch(operator)


@cache
def _watch(operator: Any) -> None:
    if isinstance(operator, torch._ops.OpOverload):
        _, space, name = operator._schema.name, *operator._schema.name.split("::")
        overload = operator._overloadname
        full = name if overload in ("", "default") else f"{name}.{overload}"
        casts = tuple(parse_dispatch_key(key) for key in _AUTOCAST if has_kernel(operator.name(), key))
        _library(space).impl(full, partial(_kernel, operator, casts), _NAME, with_keyset=True)
    else:
        operator.py_impl(_KEY)(partial(_kernel, operator, (), None))


@cache
def _library(space: str) -> Library:
    _fall_through()
    return Library(space, "IMPL")  # noqa: TOR901


@cache
def _fall_through() -> Library:
    library = Library("_", "IMPL")  # noqa: TOR901
    library.fallback(fallthrough_kernel, _NAME)
    passed_by_higher_order.append(_KEY)
    for operator in higher_order_operators.values():
        operator.fallthrough(_KEY)
    return library


def _kernel(operator: Any, casts: tuple[Any, ...], keys: Any, *args: Any, **kwargs: Any) -> Any:
    watcher = getattr(_now, "watcher", None)
    if watcher is None or operator not in watcher.operators or (casts and any(map(keys.has, casts))):
        # another policy's, or autocast's, which calls it again with what it has cast
        return operator.redispatch(keys & _BELOW, *args, **kwargs)
    with ExcludeDispatchKey(_KEY, True):
        return watcher.call(operator, args, kwargs)
