"""Context variables (`contextvars`) that a block sets: read before a call, and put back for its recompute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import Context, ContextVar, copy_context
from typing import Any

Values = Mapping[ContextVar[Any], Any]
"""Context variables with what they held."""


def set_since(before: Context) -> set[ContextVar[Any]]:
    """The variables that hold something else than in `before`.

    One that held nothing then is left out: it could not be emptied again.
    """
    now = copy_context()
    return {variable for variable, value in before.items() if now.get(variable, before) is not value}


def held_in(context: Context, variables: Iterable[ContextVar[Any]]) -> Values:
    """What the variables hold there, without those that hold nothing."""
    return {variable: context[variable] for variable in variables if variable in context}


def hold(values: Values) -> None:
    """Let the variables hold these values, in the context of the thread that asks."""
    for variable, value in values.items():
        variable.set(value)
