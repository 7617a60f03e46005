"""Changes to a model that can be taken back: by `undo`, or at the end of a `with`."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Undoable:
    """A change that `undo` takes back. In a `with` that happens at the end, unless it has happened before."""

    _undone = False

    @property
    def undone(self) -> bool:
        """Tell whether the change was taken back."""
        return self._undone

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._undone:
            self.undo()

    def undo(self) -> None:
        """Take the change back."""
        raise NotImplementedError
