"""Tensors inside values: found, taken out, and put back.

Knows tuples, lists, mappings and dataclasses, however deep. What a block's arguments mean is in `call_arguments`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from operator import is_
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

PLAIN = frozenset({bool, bytes, complex, float, int, str, type(None)})
"""Types whose values hold nothing."""

Place = tuple[Any, ...]
"""The indices, keys and field names that lead to something inside a value."""


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in `value`, however deep in tuples, lists, mappings and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    else:
        for _, item in items(value):
            yield from tensors(item)


def placed_tensors(value: Any, place: Place = ()) -> Iterator[tuple[Place, Tensor]]:
    """Yield the same with the place of each, which begins with `place`."""
    if isinstance(value, Tensor):
        yield place, value
    else:
        for step, item in items(value):
            yield from placed_tensors(item, (*place, step))


def items(value: Any) -> list[tuple[Any, Any]]:
    """What a tuple, list, mapping or dataclass holds, with its index, key or field; nothing for any other value."""
    if type(value) in PLAIN:
        return []
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    return []


def identities(container: Any) -> list[tuple[Any, int]]:
    """The ids of the objects in a dictionary or another collection, each with its key or index."""
    pairs = container.items() if isinstance(container, dict) else enumerate(container)
    return [(place, id(value)) for place, value in pairs]


def is_differentiable(tensor: Tensor) -> bool:
    """Whether a tensor of this dtype can carry gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


def hidden_tensors(value: Any, depth: int = 4) -> Iterator[Tensor]:
    """The tensors in an object that is no container: in its attributes, and in those of objects there."""
    if isinstance(value, Tensor):
        yield value
    elif depth and not isinstance(value, (nn.Module, type)) and type(value) not in PLAIN:
        contents = list(value) if isinstance(value, (set, frozenset, deque)) else [item for _, item in items(value)]
        for item in contents or list(_attributes(value)):
            yield from hidden_tensors(item, depth - 1)


def _attributes(value: Any) -> Iterator[Any]:
    yield from getattr(value, "__dict__", {}).values()
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield getattr(value, name, None)


@dataclass(frozen=True, slots=True)
class _TakenTensor:
    """In a spec, the place of a tensor that was taken out: its index among them."""

    index: int


@dataclass(frozen=True, slots=True)
class _Container:
    """In a spec, a container: an object like it, and the specs of what it holds."""

    like: Any
    contents: tuple[tuple[Any, Any], ...]


class Flattener:
    """Splits values into the tensors that require gradient, each once, and specs from which `unflatten` rebuilds them.

    A spec copies containers that can be written into, and so keeps them as they were. Other tensors stay in the specs,
    and are listed in `constants`, with the name of the value that held them in `names`.
    """

    __slots__ = ("_taken", "constants", "names", "tensors")

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.constants: list[Tensor] = []
        self.names: list[str] = []
        self._taken: dict[int, _TakenTensor] = {}

    def flatten(self, value: Any, name: str = "") -> Any:
        """Return the spec of `value`: the value itself where nothing in it has to be replaced or copied."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind is Tensor or isinstance(value, Tensor):
            if value.requires_grad:
                return self._take(value)
            self.constants.append(value)
            self.names.append(name)
            return value
        if kind is tuple:
            members = [self.flatten(item, name) for item in value]
            return value if all(map(is_, members, value)) else _Container((), tuple(enumerate(members)))
        contents = items(value)
        if not contents and not isinstance(value, (list, MutableMapping)):
            return value
        specs = tuple((place, self.flatten(item, name)) for place, item in contents)
        if isinstance(value, tuple) and all(new is old for (_, new), (_, old) in zip(specs, contents, strict=True)):
            return value
        return _Container(_rebuilt(value, specs), specs)

    def _take(self, tensor: Tensor) -> _TakenTensor:
        if (taken := self._taken.get(id(tensor))) is None:
            taken = self._taken[id(tensor)] = _TakenTensor(len(self.tensors))
            self.tensors.append(tensor)
        return taken


def unflatten(spec: Any, given: Sequence[Tensor]) -> Any:
    """Return the value of a spec, with the tensors of `given` in their places; containers are new objects."""
    kind = type(spec)
    if kind is _TakenTensor:
        return given[spec.index]
    if kind is not _Container:
        return spec
    return _rebuilt(spec.like, [(place, unflatten(item, given)) for place, item in spec.contents])


def _rebuilt(like: Any, contents: Sequence[tuple[Any, Any]]) -> Any:
    """A container like this one, with other contents."""
    if isinstance(like, tuple):
        values = [value for _, value in contents]
        return type(like)(*values) if hasattr(like, "_fields") else type(like)(values)
    if isinstance(like, MappingProxyType):
        return MappingProxyType(dict(contents))
    new = copy.copy(like)
    if isinstance(new, (list, MutableMapping)):
        for place, value in contents:
            new[place] = value
    else:
        for name, value in contents:
            object.__setattr__(new, name, value)
    return new
