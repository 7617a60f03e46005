"""Answer each question about the tree once, and collect what a graph of classes leads to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


class kept(Generic[S, P, T]):
    """A method that runs once for its positional arguments: its object keeps the answers."""

    def __init__(self, method: Callable[Concatenate[S, P], T]) -> None:
        self.__doc__ = method.__doc__
        self._method = method

    def __get__(self, instance: S, owner: type[S]) -> Callable[P, T]:
        answer = cast("Callable[P, T]", cache(partial(self._method, instance)))
        instance.__dict__[self._method.__name__] = answer  # found there from now on
        return answer


def kept_in_circles(answer: Any) -> Callable[[Callable[Concatenate[S, P], T]], kept[S, P, T]]:
    """Keep answers as `kept` does, for a method that may ask itself what it is answering: that gets `answer`."""

    def decorate(method: Callable[Concatenate[S, P], T]) -> kept[S, P, T]:
        asked: set[object] = set()

        @wraps(method)
        def once(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            question = (self, args)
            if question in asked:
                return cast("T", answer)
            asked.add(question)
            try:
                return method(self, *args, **kwargs)
            finally:
                asked.discard(question)

        return kept(once)

    return decorate


def reachable(start: Iterable[T], beyond: Callable[[T], Iterable[T]]) -> tuple[T, ...]:
    """Return everything that some things lead to at any distance, themselves first.

    Args:
        start: the things to begin with.
        beyond: returns what one thing leads to.
    """
    reached = dict.fromkeys(start)
    waiting = list(reached)
    while waiting:
        for item in beyond(waiting.pop()):
            if item not in reached:
                reached[item] = None
                waiting.append(item)
    return tuple(reached)
