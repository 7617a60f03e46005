"""Tensors inside values: found, taken out, and put back.

Knows tuples, lists, mappings and dataclasses, however deep. What a block's arguments mean is in `call_arguments`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from operator import is_
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

PLAIN = frozenset({bool, bytes, complex, float, int, str, type(None)})
"""Types whose values hold nothing."""

NOTHING: Mapping[int, Any] = MappingProxyType({})

Path = tuple[Any, ...]
"""The indices, keys and field names that lead to something inside a value."""


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in `value`, however deep in tuples, lists, mappings and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    else:
        for _, item in items(value):
            yield from tensors(item)


def placed_tensors(value: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """The same with the path to each, which begins with `path`."""
    if isinstance(value, Tensor):
        yield path, value
    else:
        for place, item in items(value):
            yield from placed_tensors(item, (*path, place))


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
class Slot:
    """In a spec, the place of a tensor that was taken out: its index among them."""

    index: int


@dataclass(frozen=True, slots=True)
class _Container:
    """In a spec, a container: an object like it, and the specs of what it holds."""

    like: Any
    contents: tuple[tuple[Any, Any], ...]


SPECS = frozenset({Slot, _Container})
"""The types of specs that are not the value itself."""


class Flattener:
    """Splits values into the tensors that are `wanted`, each once, and specs from which `unflatten` rebuilds them.

    A spec copies containers that can be written into, and so keeps them as they were. Tensors that are not wanted
    stay in the specs and are listed in `constants`, and objects of unknown structure in `opaque`, both with the name
    that came with the value. `writable` tells whether any container can be written into.
    """

    __slots__ = ("_slots", "_wanted", "constants", "opaque", "tensors", "writable")

    def __init__(self, wanted: Callable[[Tensor], bool]) -> None:
        self.tensors: list[Tensor] = []
        self.constants: list[tuple[str, Tensor]] = []
        self.opaque: list[tuple[str, Any]] = []
        self.writable = False
        self._slots: dict[int, Slot] = {}
        self._wanted = wanted

    def flatten(self, value: Any, name: str = "") -> Any:
        """The spec of `value`; the value itself where nothing in it has to be replaced or copied."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if isinstance(value, Tensor):
            return self.take(value, name)
        if kind is tuple:
            members = [self.flatten(item, name) for item in value]
            return value if all(map(is_, members, value)) else _Container((), tuple(enumerate(members)))
        contents = items(value)
        if not contents and not isinstance(value, (list, MutableMapping)):
            if not isinstance(value, (tuple, type)):
                self.opaque.append((name, value))
            return value
        specs = tuple((place, self.flatten(item, name)) for place, item in contents)
        if isinstance(value, tuple) and all(new is old for (_, new), (_, old) in zip(specs, contents, strict=True)):
            return value
        self.writable |= not isinstance(value, tuple)
        return _Container(_rebuilt(value, specs), specs)

    def take(self, tensor: Tensor, name: str) -> Any:
        """The spec of a tensor."""
        if not self._wanted(tensor):
            self.constants.append((name, tensor))
            return tensor
        if (slot := self._slots.get(id(tensor))) is not None:
            return slot
        slot = self._slots[id(tensor)] = Slot(len(self.tensors))
        self.tensors.append(tensor)
        return slot


def unflatten(spec: Any, given: Sequence[Tensor], stand_ins: Mapping[int, Any] = NOTHING) -> Any:
    """The value of a spec, with the tensors of `given` in its slots; containers are new objects.

    `stand_ins` take the places of other values, by the ids of those.
    """
    kind = type(spec)
    if kind is Slot:
        return given[spec.index]
    if kind is not _Container:
        if stand_ins and kind is tuple:
            return tuple([unflatten(item, given, stand_ins) for item in spec])
        return stand_ins.get(id(spec), spec) if stand_ins else spec
    contents = [(place, unflatten(item, given, stand_ins)) for place, item in spec.contents]
    return _rebuilt(spec.like, contents)


def slot_paths(spec: Any) -> dict[int, Path]:
    """The path to each slot of a spec, by the slot's index."""
    if type(spec) is Slot:
        return {spec.index: ()}
    if type(spec) is not _Container:
        return {}
    return {index: (place, *rest) for place, item in spec.contents for index, rest in slot_paths(item).items()}


def at(value: Any, path: Path) -> Any:
    """What stands in a value at the end of a path; None where the path leads nowhere."""
    for place in path:
        value = dict(items(value)).get(place)
    return value


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
