"""What the methods of a class use from outside of its instances, and may write.

That is attributes of the class, variables of enclosing functions, and containers that their Python module holds.
"""

from __future__ import annotations

import dis
import random
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import CellType, CodeType, FunctionType
from typing import Any

import torch
from torch import nn

from ckpt_surgery.runtime.iterators import is_plain_iterator
from ckpt_surgery.runtime.tools.classes import names_in
from ckpt_surgery.runtime.tools.containers import PLAIN

_CONTAINERS = (dict, list, set, deque, array, bytearray, random.Random, torch.Generator)
_LIBRARIES = ("builtins", "torch", "transformers")


def outer_variables(kind: type[nn.Module]) -> Iterator[tuple[str, Any]]:
    """The variables outside of a class that its methods can write, by their names; libraries' own are left out."""
    for name, source in _sources(kind):  # type: ignore[arg-type]  # a class is hashable
        if isinstance(source, (CellType, NamedVariables)):
            yield name, source
        elif isinstance(source, type):
            yield name, vars(source).get(name)
        elif name in source and _can_be_written(value := source[name]):
            yield name, value


def _may_hold(value: Any) -> bool:
    """Whether an attribute of a class may hold something that its methods write."""
    return type(value) is tuple or _can_be_written(value)


def _can_be_written(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    arrays = (numpy.ndarray, numpy.random.Generator, numpy.random.RandomState) if numpy else ()
    return isinstance(value, (*_CONTAINERS, *arrays)) or is_plain_iterator(value)


@dataclass(frozen=True, slots=True)
class NamedVariables:
    """Variables by their names: attributes of a class that may count there, or globals that functions write.

    `held` is where they stand, and `assign` sets one.
    """

    held: Mapping[str, Any]
    names: tuple[str, ...]
    assign: Callable[[str, Any], None]

    def read(self) -> list[tuple[str, Any]]:
        """Those that there are now."""
        return [(name, self.held[name]) for name in self.names if name in self.held]

    def put(self, pairs: list[tuple[str, Any]]) -> None:
        """Set those that are others now."""
        for name, value in pairs:
            if self.held.get(name) is not value:
                self.assign(name, value)


def _written_globals(function: FunctionType) -> Iterator[str]:
    """The global names that a function writes, or the functions of its Python module that it names."""
    yield from _stored(function.__code__)
    for name in names_in(function.__code__):
        other = function.__globals__.get(name)
        if isinstance(other, FunctionType) and other.__globals__ is function.__globals__:
            yield from _stored(other.__code__)


def _stored(code: CodeType) -> Iterator[str]:
    yield from (
        instruction.argval for instruction in dis.get_instructions(code) if instruction.opname == "STORE_GLOBAL"
    )
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _stored(constant)


@cache
def _sources(kind: type[nn.Module]) -> tuple[tuple[str, Any], ...]:
    """The cells; for names of a Python module, its dictionary; and for attributes of a class, that class."""
    sources: dict[tuple[str, int], tuple[str, Any]] = {}
    for base in kind.__mro__:
        if _is_of_library(base.__module__):
            continue
        named = {name for f in vars(base).values() if isinstance(f, FunctionType) for name in names_in(f.__code__)}
        plain = tuple(n for n, v in vars(base).items() if type(v) in PLAIN and n in named and not n.startswith("__"))
        if plain:
            sources["", id(base)] = base.__name__, NamedVariables(vars(base), plain, partial(setattr, base))
        for attribute, function in vars(base).items():
            if _may_hold(function) and not attribute.startswith("__"):
                sources[attribute, id(base)] = attribute, base
            if isinstance(function, FunctionType) and not _is_of_library(str(function.__globals__.get("__name__"))):
                for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                    if name != "__class__":
                        sources[name, id(cell)] = name, cell
                for name in names_in(function.__code__):
                    sources[name, id(function.__globals__)] = name, function.__globals__
                written, held = tuple(sorted(set(_written_globals(function)))), function.__globals__
                if written:
                    sources["", id(function)] = written[0], NamedVariables(held, written, held.__setitem__)
    return tuple(sources.values())


def _is_of_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES
