"""A hook that belongs to one model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ModelHook:
    """A hook on modules or parameters of one model, which only looks: a gradient may come to it in parts.

    In copies and pickles of the model a hook that does nothing takes its place.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return ModelHook, (nothing,)


def nothing(*_: Any, **__: Any) -> None:
    """Stand in copies of a model for a hook of its own."""
