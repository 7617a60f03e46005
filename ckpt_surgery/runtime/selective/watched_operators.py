"""Intercept the calls of a few operators in a block, through torch's dispatcher and above autograd.

Each operator gets a kernel at a dispatch key that torch reserves for its tests. The key is active on a block's thread
while the block runs: other operators fall through it, and outside of a block nothing is intercepted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from threading import local
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.library import Library, fallthrough_kernel
from torch.nn.functional import linear

from ckpt_surgery.torch_names import (
    ExcludeDispatchKey,
    IncludeDispatchKey,
    has_kernel,
    higher_order_operators,
    is_any_autocast_enabled,
    is_compiled,
    keys_after,
    parse_dispatch_key,
    passed_by_higher_order,
)

_NAME = "TESTING_ONLY_GenericMode"
_KEY = parse_dispatch_key(_NAME)
_BELOW = keys_after(_KEY)
_AUTOCAST = ("AutocastCPU", "AutocastCUDA", "AutocastXPU")
_LINEAR = torch.ops.aten.linear.default
_now = local()
Shortcuts = Sequence[tuple[dict[str, Any], Callable[..., Any]]]


class Watcher(Protocol):
    """The receiver of each call of its `operators`, which returns the result."""

    @property
    def operators(self) -> Collection[int]:
        """The ids of its operators: hashing the operators is slower."""

    def call(self, operator: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of an operator's call, which `run` executes."""


class Watching:
    """A context in which calls of watched operators on this thread go to `watcher`.

    `shortcuts` are forwards that call it without the dispatcher, which is slower, and the attributes to set them in.
    """

    __slots__ = ("_guard", "_outer", "_shortcuts", "_watcher")

    def __init__(self, watcher: Watcher, shortcuts: Shortcuts) -> None:
        self._watcher = watcher
        self._shortcuts = shortcuts

    def __enter__(self) -> None:
        for attributes, forward in self._shortcuts:
            attributes["forward"] = forward
        self._outer = getattr(_now, "watcher", None)
        _now.watcher = self._watcher
        self._guard = IncludeDispatchKey(_KEY)
        self._guard.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        self._guard.__exit__(*error)
        _now.watcher = self._outer
        for attributes, _ in self._shortcuts:
            attributes.pop("forward", None)


def shortcuts_of(block: nn.Module) -> Shortcuts:
    """Return shortcuts for the linear layers in a block whose forward nobody has replaced or compiled."""
    compiled = {part for module in block.modules() if is_compiled(module) for part in module.modules()}
    return [
        (vars(module), partial(_linear, module))
        for module in block.modules()
        if type(module).forward is nn.Linear.forward and "forward" not in vars(module) and module not in compiled
    ]


def _linear(module: Any, input: Tensor) -> Tensor:
    watcher = getattr(_now, "watcher", None)
    if watcher is None or is_any_autocast_enabled() or type(input) is not Tensor:
        return linear(input, module.weight, module.bias)
    return cast(Tensor, watcher.call(_LINEAR, _unwatched_linear, (input, module.weight, module.bias), {}))


def _unwatched_linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    with ExcludeDispatchKey(_KEY, True):
        return linear(input, weight, bias)


@cache
def watch(operator: Any) -> None:
    """Register a kernel for an operator that calls the active watcher, if there is one."""
    _fall_through()
    if operator in higher_order_operators.values():
        operator.py_impl(_KEY)(partial(_kernel, operator, (), None))
        return
    name = operator.name()
    casts = tuple([parse_dispatch_key(key) for key in _AUTOCAST if has_kernel(name, key)])
    space, _, rest = name.partition("::")
    _library(space).impl(rest, partial(_kernel, operator, casts), _NAME, with_keyset=True)  # type: ignore[no-untyped-call]


@cache
def _library(space: str) -> Library:
    return Library(space, "IMPL")  # type: ignore[no-untyped-call]


@cache
def _fall_through() -> Library:
    library = Library("_", "IMPL")  # type: ignore[no-untyped-call]
    library.fallback(fallthrough_kernel, _NAME)  # type: ignore[no-untyped-call]
    passed_by_higher_order.append(_KEY)
    for operator in higher_order_operators.values():
        operator.fallthrough(_KEY)
    return library


def _kernel(operator: Any, casts: tuple[Any, ...], keys: Any, *args: Any, **kwargs: Any) -> Any:
    watcher = getattr(_now, "watcher", None)
    if (
        watcher is None
        or id(operator) not in watcher.operators
        or (casts and is_any_autocast_enabled() and any(map(keys.has, casts)))
    ):
        # the operator of another policy, or a call that autocast repeats with tensors that it has cast
        if keys is not None:
            return operator.redispatch(keys & _BELOW, *args, **kwargs)
        with ExcludeDispatchKey(_KEY, True):
            return operator(*args, **kwargs)
    with ExcludeDispatchKey(_KEY, True):
        return watcher.call(operator, operator, args, kwargs)
