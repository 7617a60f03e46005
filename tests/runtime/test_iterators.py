"""A fork of an iterator yields what the iterator has left, and neither moves the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from ckpt_surgery.runtime.iterators import fork, is_plain_iterator, position

VALUES = [1, 2, 3, 4, 5]
MAKERS: dict[str, Callable[[], Iterator[Any]]] = {
    "list": lambda: iter(VALUES),
    "tuple": lambda: iter((1, 2, 3)),
    "range": lambda: iter(range(9)),
    "reversed": lambda: reversed(VALUES),
    "count": lambda: itertools.count(3),
    "cycle": lambda: itertools.cycle(VALUES[:3]),
    "repeat": lambda: itertools.repeat(2, 9),
    "chain": lambda: itertools.chain(VALUES, VALUES),
    "islice": lambda: itertools.islice(VALUES, 1, 4),
    "enumerate": lambda: enumerate(VALUES),
    "zip": lambda: zip(VALUES, range(9), strict=False),
    "map": lambda: map(str, VALUES),
    "a map of a cycle": lambda: map(str, itertools.cycle(VALUES[:2])),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
@pytest.mark.parametrize("taken", range(3))
def test_a_fork_goes_on_where_the_iterator_stands(make: Callable[[], Iterator[Any]], taken: int) -> None:
    iterator, expected = make(), make()
    for each in (iterator, expected):
        list(itertools.islice(each, taken))
    assert is_plain_iterator(iterator)
    first, second = fork(iterator), fork(iterator)
    rest = list(itertools.islice(expected, 7))
    assert list(itertools.islice(first, 7)) == rest
    assert list(itertools.islice(iterator, 7)) == rest
    assert list(itertools.islice(second, 7)) == rest


@pytest.mark.parametrize("make", [lambda: (value for value in VALUES), lambda: itertools.pairwise(VALUES)])
def test_what_cannot_be_copied_is_said_to_be_so(make: Callable[[], Iterator[Any]]) -> None:
    with pytest.raises(TypeError, match=r"pickle|copied"):
        fork(make())


@pytest.mark.parametrize("delegating", [False, True])
def test_the_position_of_a_generator_that_yields_from_another_changes(delegating: bool) -> None:
    def inner() -> Generator[int, None, None]:
        yield from range(4)

    def outer() -> Generator[int, None, None]:
        yield from inner() if delegating else iter([5, 5, 5, 5])

    generator = outer()
    next(generator)
    before = position(generator)
    assert position(generator) == before
    next(generator)
    assert position(generator) != before


def test_the_position_of_a_generator_changes_with_every_value() -> None:
    def numbers() -> Generator[int, None, None]:
        number = 0
        while True:
            yield number
            number += 1

    generator = numbers()
    seen = []
    for _ in range(3):
        seen.append(position(generator))
        next(generator)
    assert all(ours != theirs for ours, theirs in itertools.combinations(seen, 2))
    generator.close()
    assert position(generator) is None
