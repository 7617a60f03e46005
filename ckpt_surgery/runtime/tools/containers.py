"""Find the tensors nested in a value, take them out, and put them back.

Tuples, lists, mappings and dataclasses are searched at any depth.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict, UserDict, deque
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

from torch import Tensor, nn

PLAIN = frozenset({bool, bytes, complex, float, int, str, type(None)})
"""Types whose values contain no other objects."""

Keys = tuple[Any, ...]
"""The indices, keys and field names that lead to something inside a value."""


class Absent:
    """A marker for a missing attribute or key."""


def put(home: dict[str, Any], name: str, value: Any) -> None:
    """Set a name to a value, or remove the name if the value is Absent."""
    if value is Absent:
        home.pop(name, None)
    else:
        home[name] = value


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield every tensor in `value`, however deep in tuples, lists, mappings and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    else:
        for _, item in items(value):
            yield from tensors(item)


def keyed_tensors(value: Any, keys: Keys = ()) -> Iterator[tuple[Keys, Tensor]]:
    """Yield every tensor in `value` with the keys that lead to it, which begin with `keys`."""
    if isinstance(value, Tensor):
        yield keys, value
    else:
        for key, item in items(value):
            yield from keyed_tensors(item, (*keys, key))


def items(value: Any) -> list[tuple[Any, Any]]:
    """List the items of a tuple, list, mapping or dataclass, with index, key or field; none for other values."""
    if type(value) in PLAIN:
        return []
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    return []


def put_at(value: Any, keys: Keys, new: Any) -> Any:
    """Return `value` with `new` at `keys`: written in place if possible, otherwise into a copied tuple."""
    if not keys:
        return new
    place, *inner = keys
    held = dict(items(value))
    before, held[place] = held[place], put_at(held[place], tuple(inner), new)
    if held[place] is before:
        return value
    if isinstance(value, tuple):
        return _rebuilt(value, list(held.items()))
    if isinstance(value, (list, MutableMapping)):
        value[place] = held[place]
    elif dataclasses.is_dataclass(value):
        object.__setattr__(value, place, held[place])
    return value


def hidden_tensors(value: Any, depth: int = 4) -> Iterator[Tensor]:
    """Yield the tensors in an object of any class: in its items or attributes and in theirs, up to `depth` levels."""
    if isinstance(value, Tensor):
        yield value
    elif depth and not isinstance(value, (nn.Module, type)) and type(value) not in PLAIN:
        contents = list(value) if isinstance(value, (set, frozenset, deque)) else [item for _, item in items(value)]
        if not contents:
            slots = [vars(kind).get("__slots__", ()) for kind in type(value).__mro__]
            names = [name for each in slots for name in ((each,) if isinstance(each, str) else each)]
            contents = [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in names)]
        for item in contents:
            if type(item) not in PLAIN:
                yield from hidden_tensors(item, depth - 1)


@dataclass(frozen=True, slots=True)
class _TakenTensor:
    """The place in a spec of a tensor that was taken out: its index among those."""

    index: int


@dataclass(frozen=True, slots=True)
class _Container:
    """A container in a spec: an object to copy it from, and the specs of its items."""

    like: Any
    contents: tuple[tuple[Any, Any], ...]


class Flattener:
    """Splits values into the tensors that require gradient, each once, and specs from which `unflatten` rebuilds them.

    A spec holds copies of mutable containers, so that later writes to those do not reach it. Tensors that do not
    require gradient stay in the spec, and are listed in `constants`. Containers of custom classes are not copied: a
    copy may share what they hold.
    """

    __slots__ = ("_taken", "constants", "tensors")

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.constants: list[Tensor] = []
        self._taken: dict[int, _TakenTensor] = {}

    def flatten(self, value: Any) -> Any:
        """Return the spec of `value`: the value itself if nothing in it has to be replaced or copied."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind is Tensor or isinstance(value, Tensor):
            if value.requires_grad:
                if (taken := self._taken.get(id(value))) is None:
                    taken = self._taken[id(value)] = _TakenTensor(len(self.tensors))
                    self.tensors.append(value)
                return taken
            self.constants.append(value)
            return value
        if kind is tuple:
            members = list(map(self.flatten, value))
            return value if all(map(is_, members, value)) else _Container((), tuple(enumerate(members)))
        contents = items(value)
        if not _can_be_rebuilt(kind) or not (contents or isinstance(value, (list, MutableMapping))):
            return value
        specs = tuple((key, self.flatten(item)) for key, item in contents)
        if isinstance(value, tuple) and all(new is old for (_, new), (_, old) in zip(specs, contents, strict=True)):
            return value
        return _Container(_rebuilt(value, specs), specs)


def unflatten(spec: Any, given: Sequence[Tensor]) -> Any:
    """Rebuild the value of a spec with the tensors of `given` filled in; containers are new objects."""
    kind = type(spec)
    if kind is _TakenTensor:
        return given[spec.index]
    if kind is not _Container:
        return spec
    return _rebuilt(spec.like, [(key, unflatten(item, given)) for key, item in spec.contents])


def _can_be_rebuilt(kind: type) -> bool:
    if issubclass(kind, tuple):
        return hasattr(kind, "_make") or kind.__new__ is tuple.__new__
    if issubclass(kind, (list, dict)) and kind.__setitem__ in _WRITES:
        return True
    return issubclass(kind, UserDict) or dataclasses.is_dataclass(kind)


_WRITES = (list.__setitem__, dict.__setitem__, OrderedDict.__setitem__)  # these store what they are given


def _rebuilt(like: Any, contents: Sequence[tuple[Any, Any]]) -> Any:
    if isinstance(like, tuple):
        values = [value for _, value in contents]
        return type(like)._make(values) if hasattr(like, "_make") else type(like)(values)
    new = copy.copy(like)
    if isinstance(new, (list, MutableMapping)):
        for key, value in contents:
            new[key] = value
    else:
        for name, value in contents:
            object.__setattr__(new, name, value)
    return new
