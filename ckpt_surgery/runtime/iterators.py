"""Iterators that can be gone through once more: a fork yields what an iterator has left, without taking it away."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from types import GeneratorType
from typing import Any, cast


def is_plain_iterator(value: Any) -> bool:
    """Whether a value is one of Python's own iterators, which have a position and no attributes."""
    return type(value).__module__ in ("builtins", "itertools") and isinstance(value, Iterator)


def fork(iterator: Any) -> Any:
    """An iterator that yields what `iterator` has left. Raises TypeError for those that cannot be copied."""
    if isinstance(iterator, GeneratorType):
        raise TypeError("a generator cannot be copied")
    reduced = iterator.__reduce__()
    if isinstance(reduced, str):
        raise TypeError(f"{type(iterator).__name__} cannot be copied")
    kind, arguments, *state = reduced
    new = kind(*(fork(a) if is_plain_iterator(a) else a for a in arguments))
    if state and state[0] is not None:
        new.__setstate__(tuple(map(_own, state[0])) if type(state[0]) is tuple else state[0])
    return new


def generators_in(iterator: Any) -> Iterator[GeneratorType[Any, Any, Any]]:
    """The generators that one of Python's own iterators draws from."""
    try:
        parts = iterator.__reduce__()[1]
    except TypeError:
        return
    for part in parts:
        if isinstance(part, GeneratorType):
            yield part
        elif is_plain_iterator(part):
            yield from generators_in(part)


def _own(part: Any) -> Any:
    """A part of an iterator's state, not shared with it: `cycle` appends to the list of what it yielded."""
    if is_plain_iterator(part):
        return fork(part)
    return list(part) if type(part) is list else part


def position(generator: Generator[Any, Any, Any]) -> Any:
    """Where a generator stands, as far as can be seen from outside: its instruction, its variables, and its source."""
    inner = cast("GeneratorType[Any, Any, Any]", generator)
    frame, source = inner.gi_frame, inner.gi_yieldfrom
    if frame is None:
        return None
    if isinstance(source, GeneratorType):
        source = position(source)
    elif is_plain_iterator(source):
        source = cast(Any, source).__reduce__()
    return frame.f_lasti, [(name, id(value)) for name, value in frame.f_locals.items()], source
