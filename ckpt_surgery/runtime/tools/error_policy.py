"""What a surgery does with an error in a training step: raise it, or report the first and swallow the others."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any


class ErrorPolicy:
    """A context for code that may refuse a call or fail: it raises every error unless `report` is set.

    With `report`, it reports the first error in the life of the surgery and swallows all later ones: every call of a
    block then runs under torch's checkpointing alone. Copies and pickles raise.
    """

    __slots__ = ("report", "reported")

    def __init__(self) -> None:
        self.report: Callable[[Exception], None] | None = None
        self.reported = False

    def __reduce__(self) -> tuple[Any, ...]:
        return ErrorPolicy, ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self.report is None or not isinstance(error, Exception):
            return False
        if not self.reported:
            self.reported = True
            self.report(error)
        return True
