"""Comparisons of dictionaries by what they hold: whether the values are the same objects."""

from __future__ import annotations

from collections.abc import Iterator
from operator import is_
from typing import Any


class _Absent:
    """Stands in for an attribute that is not there."""


def all_same(dicts: list[dict[str, Any]], copies: list[dict[str, Any]]) -> bool:
    """Whether the dictionaries hold what their copies do. This is done in every call, and so by one comparison.

    What is the same object is equal without a look at it.
    """
    try:
        return dicts == copies
    except Exception:  # values that cannot be compared, such as tensors of several elements
        return all(map(identical, dicts, copies))


def identical(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Whether two dictionaries hold the very same objects, in the same order."""
    return len(ours) == len(theirs) and all(map(is_, ours.values(), theirs.values())) and ours.keys() == theirs.keys()


def differing(ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    """The keys under which two dictionaries hold other objects, or only one holds something."""
    for name in ours.keys() | theirs.keys():
        if ours.get(name, _Absent) is not theirs.get(name, _Absent):
            yield name
