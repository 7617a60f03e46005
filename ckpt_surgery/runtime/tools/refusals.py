"""Decide what becomes of an error in a surgery: it is raised, or reported once while the training goes on."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any


class Refusals:
    """A context that raises what is refused or fails inside it, as usual, or reports it.

    Once `tell` is set, the first such error is reported instead, and every call of a block goes on as under
    torch's own checkpointing. Copies and pickles raise.
    """

    __slots__ = ("tell", "told")

    def __init__(self) -> None:
        self.tell: Callable[[Exception], None] | None = None
        self.told = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Refusals, ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self.tell is None or not isinstance(error, Exception):
            return False
        if not self.told:
            self.told = True
            self.tell(error)
        return True
