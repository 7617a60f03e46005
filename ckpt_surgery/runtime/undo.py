"""What was done to a model and can be taken back, as a context manager."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Undoable:
    """In a `with` it is undone at the end, unless it was before."""

    _undone = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._undone:
            self.undo()

    def undo(self) -> None:
        """Take it back."""
        raise NotImplementedError
