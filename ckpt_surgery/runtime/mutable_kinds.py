"""How the contents of mutable objects are read and put back in place, one entry a kind of object.

Contents are pairs of a key and a value: a dictionary's items, a list's indices, an object's attributes.
"""

from __future__ import annotations

import io
import random
import sys
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import CellType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from ckpt_surgery.runtime.outer_variables import NamedVariables
from ckpt_surgery.runtime.tools.classes import descends, slots_of
from ckpt_surgery.runtime.tools.containers import PLAIN

Pairs = list[tuple[Any, Any]]

_UNFOLLOWED = ("PretrainedConfig", "PreTrainedConfig", "ProcessGroup", "DeviceMesh")
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that a `class` statement made


@dataclass(frozen=True, slots=True)
class MutableKind:
    """One way in which objects hold something: `read` gives its pairs, and `put` replaces them in place.

    What a kind that is no `container` holds are values of its own, such as a generator's state or an array's
    numbers, and not other objects.
    """

    read: Callable[[Any], Pairs]
    put: Callable[[Any, Pairs], None]
    container: bool = True


@cache
def kinds_of(kind: type) -> tuple[MutableKind, ...]:
    """The ways in which objects of a class can be written; none for what never changes or is not followed."""
    if issubclass(kind, nn.Module):
        return (_OUTER_MODULE,)
    if issubclass(kind, (type, torch.Tensor, Enum)) or any(descends(kind, name) for name in _UNFOLLOWED):
        return ()
    for base, mutable in (*_BUILT_IN, *_of_numpy()):
        if issubclass(kind, base):
            return (mutable, *_attributes(kind))
    return _attributes(kind)


def _attributes(kind: type) -> tuple[MutableKind, ...]:
    if not _is_followed(kind):
        return ()
    slots = slots_of(kind)
    found = [MutableKind(lambda value: list(_dict_of(value).items()), _put_attributes)] if _has_dict(kind) else []
    if slots:
        found.append(
            MutableKind(
                lambda value: [(name, getattr(value, name)) for name in slots if hasattr(value, name)],
                lambda value, pairs: _put_slots(value, pairs, slots),
            )
        )
    return tuple(found)


_LIBRARIES = frozenset(
    {
        "accelerate",
        "bitsandbytes",
        "ckpt_surgery",
        "deepspeed",
        "numpy",
        "peft",
        "torch",
        "torchao",
        "transformer_engine",
        "triton",
    }
)
"""Packages whose objects keep books about modules of their own: to put those back would belie what was done since."""
_STANDARD = sys.stdlib_module_names - {"__main__", "argparse", "collections"}


def _is_followed(kind: type) -> bool:
    """Whether objects of a class hold what its author put there."""
    if issubclass(kind, SimpleNamespace):
        return True
    return bool(kind.__flags__ & _HEAP_TYPE) and kind.__module__.partition(".")[0] not in _LIBRARIES | _STANDARD


def _has_dict(kind: type) -> bool:
    return kind.__dictoffset__ != 0


def _dict_of(value: Any) -> dict[str, Any]:
    return object.__getattribute__(value, "__dict__")  # type: ignore[no-any-return]


def _put_attributes(value: Any, pairs: Pairs) -> None:
    attributes = _dict_of(value)
    attributes.clear()
    attributes.update(pairs)


def _put_slots(value: Any, pairs: Pairs, slots: Iterable[str]) -> None:
    held = dict(pairs)
    for name in slots:
        if name in held:
            object.__setattr__(value, name, held[name])
        elif hasattr(value, name):
            object.__delattr__(value, name)


def _plain_attributes(module: nn.Module) -> Pairs:
    return [(name, value) for name, value in vars(module).items() if type(value) in PLAIN]


def _put_plain_attributes(module: nn.Module, pairs: Pairs) -> None:
    held = vars(module)
    held.update((name, value) for name, value in pairs if name in held and type(held[name]) in PLAIN)


_OUTER_MODULE = MutableKind(_plain_attributes, _put_plain_attributes)
"""A module to which an object leads: the numbers on it. What else it has, or has by now, is its own affair."""


def _put_ordered(value: OrderedDict[Any, Any], pairs: Pairs) -> None:
    OrderedDict.clear(value)
    for key, item in pairs:
        OrderedDict.__setitem__(value, key, item)


def _put_dict(value: dict[Any, Any], pairs: Pairs) -> None:
    dict.clear(value)
    dict.update(value, pairs)


def _put_set(value: set[Any], pairs: Pairs) -> None:
    set.clear(value)
    set.update(value, [item for _, item in pairs])


def _put_deque(value: deque[Any], pairs: Pairs) -> None:
    deque.clear(value)
    deque.extend(value, [item for _, item in pairs])


def _put_cell(cell: CellType, pairs: Pairs) -> None:
    for _, value in pairs:
        cell.cell_contents = value


def _put_stream(stream: Any, held: tuple[Any, int]) -> None:
    content, place = held
    stream.seek(0)
    stream.truncate()
    stream.write(content)
    stream.seek(place)


def _cell_pairs(cell: CellType) -> Pairs:
    try:
        return [("", cell.cell_contents)]
    except ValueError:  # an empty one
        return []


def _one(read: Callable[[Any], Any], put: Callable[[Any, Any], Any]) -> MutableKind:
    """A kind that is written as a whole."""
    return MutableKind(
        lambda value: [("", read(value))], lambda value, pairs: put(value, pairs[0][1]), container=False
    )


_BUILT_IN: tuple[tuple[type, MutableKind], ...] = (
    (OrderedDict, MutableKind(lambda value: list(OrderedDict.items(value)), _put_ordered)),
    (dict, MutableKind(lambda value: list(dict.items(value)), _put_dict)),
    (
        list,
        MutableKind(
            lambda value: list(enumerate(list.__iter__(value))),
            lambda value, pairs: list.__setitem__(value, slice(None), [item for _, item in pairs]),
        ),
    ),
    (set, MutableKind(lambda value: list(enumerate(set.__iter__(value))), _put_set)),
    (deque, MutableKind(lambda value: list(enumerate(deque.__iter__(value))), _put_deque)),
    (CellType, MutableKind(_cell_pairs, _put_cell)),
    (NamedVariables, MutableKind(NamedVariables.read, NamedVariables.put)),
    (bytearray, _one(bytes, lambda value, held: value.__setitem__(slice(None), held))),
    (array, _one(lambda value: value[:], lambda value, held: value.__setitem__(slice(None), held))),
    (io.StringIO, _one(lambda value: (value.getvalue(), value.tell()), _put_stream)),
    (io.BytesIO, _one(lambda value: (value.getvalue(), value.tell()), _put_stream)),
    (random.Random, _one(lambda value: value.getstate(), lambda value, held: value.setstate(held))),
    (torch.Generator, _one(lambda value: value.get_state(), lambda value, held: value.set_state(held))),
)


def _put_array(value: Any, held: Any) -> None:
    if value.shape != held.shape:
        value.resize(held.shape, refcheck=False)
    value[...] = held


def _put_bit_generator(value: Any, held: Any) -> None:
    value.bit_generator.state = held


@cache
def _of_numpy() -> tuple[tuple[type, MutableKind], ...]:
    """Those of numpy; torch imports it where it is installed, so whoever can hold an array has it."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return ()
    return (
        (numpy.ndarray, _one(lambda value: value.copy(), _put_array)),
        (numpy.random.Generator, _one(lambda value: value.bit_generator.state, _put_bit_generator)),
        (numpy.random.RandomState, _one(lambda v: v.get_state(legacy=False), lambda v, held: v.set_state(held))),
    )
