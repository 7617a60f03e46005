"""Cache the results of methods, and collect what is reachable in a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


class cached_method(Generic[S, P, T]):
    """A method whose results its object caches, one for each set of positional arguments."""

    def __init__(self, method: Callable[Concatenate[S, P], T]) -> None:
        self.__doc__ = method.__doc__
        self._method = method

    def __get__(self, instance: S, owner: type[S]) -> Callable[P, T]:
        cached = cast("Callable[P, T]", cache(partial(self._method, instance)))
        instance.__dict__[self._method.__name__] = cached  # found instead of this descriptor from now on
        return cached


def cached_with_cycles(inner: Any) -> Callable[[Callable[Concatenate[S, P], T]], cached_method[S, P, T]]:
    """Cache as `cached_method` does; a call that runs into the same call again gets `inner` as its result there."""

    def decorate(method: Callable[Concatenate[S, P], T]) -> cached_method[S, P, T]:
        running: set[object] = set()

        @wraps(method)
        def once(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            call = (self, args)
            if call in running:
                return cast("T", inner)
            running.add(call)
            try:
                return method(self, *args, **kwargs)
            finally:
                running.discard(call)

        return cached_method(once)

    return decorate


def reachable(start: Iterable[T], step: Callable[[T], Iterable[T]]) -> tuple[T, ...]:
    """Return all that can be reached from some items in any number of steps, those items first.

    Args:
        start: the items to begin with.
        step: returns what can be reached from an item in one step.
    """
    reached = dict.fromkeys(start)
    pending = list(reached)
    while pending:
        for item in step(pending.pop()):
            if item not in reached:
                reached[item] = None
                pending.append(item)
    return tuple(reached)
