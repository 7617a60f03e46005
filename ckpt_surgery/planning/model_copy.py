"""Copy models together with the functions on them: `copy.deepcopy` would leave those with the original.

`block.forward = lambda x: old(x)` is such a function: in a plain deep copy it still runs the block of the original.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import suppress
from functools import WRAPPER_ASSIGNMENTS, cache, partial
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import nn

from ckpt_surgery.runtime.tools.containers import items

_FUNCTIONS = (FunctionType, MethodType, partial)


class Copies:
    """Copies of models, and functions that refer to copies instead of originals.

    `copies` is the memo of `copy.deepcopy`: copies by the ids of originals.
    """

    def __init__(self, copies: dict[int, Any]) -> None:
        self._copies = copies
        self._made: dict[int, Any] = {}  # by the ids of the original functions
        self._originals: list[Any] = []  # keeps those functions alive

    def model(self, model: nn.Module) -> nn.Module:
        """Copy a model deeply."""
        copied: nn.Module = copy.deepcopy(model, self._copies)
        for made in [value for original, value in self._copies.items() if original != id(self._copies)]:
            self._redirect(made)
        return copied

    def _redirect(self, copied: Any) -> None:
        """Replace the functions that a copied object holds by functions that refer to copies."""
        for holder in (copied, getattr(copied, "__dict__", None)):
            if isinstance(holder, (dict, list)):
                for key, new in self._replacements(items(holder)):
                    holder[key] = new
        kind: type = type(copied)
        for name, new in self._replacements((name, getattr(copied, name, None)) for name in _slots_of(kind)):
            object.__setattr__(copied, name, new)  # it may be frozen

    def _replacements(self, held: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """List the keys whose functions must be replaced, each with the new function."""
        return [(key, new) for key, value in held if (new := self.function(value)) is not value]

    def function(self, value: Any) -> Any:
        """Return what replaces a function, method or partial that refers to an original; anything else unchanged."""
        if id(value) not in self._made:
            if not isinstance(value, _FUNCTIONS) or not self._reaches_original(value):
                return value
            self._originals.append(value)
            if isinstance(value, FunctionType):
                self._make(value)
            elif isinstance(value, MethodType):
                self._made[id(value)] = MethodType(self.function(value.__func__), self._copy_of(value.__self__))
            else:
                options = {name: self._copy_of(each) for name, each in value.keywords.items()}
                self._made[id(value)] = partial(self.function(value.func), *map(self._copy_of, value.args), **options)
        return self._made[id(value)]

    def _copy_of(self, value: Any) -> Any:
        """Return what replaces a value that a function holds."""
        return self._copies[id(value)] if id(value) in self._copies else self.function(value)

    def _reaches_original(self, value: Any) -> bool:
        seen: set[int] = set()
        waiting = [value]
        while waiting:
            each = waiting.pop()
            if id(each) in self._copies:
                return True
            if id(each) in seen:
                continue
            seen.add(id(each))
            if isinstance(each, MethodType):
                waiting += [each.__func__, each.__self__]
            elif isinstance(each, partial):
                waiting += [each.func, *each.args, *each.keywords.values()]
            elif isinstance(each, FunctionType):
                waiting += [*(each.__defaults__ or ()), *(each.__kwdefaults__ or {}).values(), *vars(each).values()]
                for cell in each.__closure__ or ():
                    with suppress(ValueError):  # it is empty
                        waiting.append(cell.cell_contents)
        return False

    def _make(self, function: FunctionType) -> None:
        """Make a function like this one, which may refer to itself."""
        cells = tuple(CellType() for _ in function.__closure__ or ())
        made = FunctionType(function.__code__, function.__globals__, function.__name__, closure=cells or None)
        self._made[id(function)] = made
        for cell, before in zip(cells, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # it is empty
                cell.cell_contents = self._copy_of(before.cell_contents)
        for name in WRAPPER_ASSIGNMENTS:
            setattr(made, name, getattr(function, name))
        vars(made).update((name, self._copy_of(value)) for name, value in vars(function).items())
        if function.__defaults__:
            made.__defaults__ = tuple(map(self._copy_of, function.__defaults__))
        if function.__kwdefaults__:
            made.__kwdefaults__ = {name: self._copy_of(value) for name, value in function.__kwdefaults__.items()}


@cache
def _slots_of(kind: type) -> tuple[str, ...]:
    """List the names under which the instances of a class have slots, inherited and private ones too."""
    found: list[str] = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            if name not in ("__dict__", "__weakref__"):
                found.append(f"_{base.__name__.lstrip('_')}{name}" if private else name)
    return tuple(found)
