"""Changes to a model that can be undone: by `undo`, or at the end of a `with`."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from torch.utils.hooks import RemovableHandle


class Undoable:
    """A change that `undo` takes back, and so does the end of a `with` block."""

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


class UndoableHooks(Undoable):
    """Hooks on a model, until `undo` removes them."""

    def __init__(self, handles: Iterable[RemovableHandle] = ()) -> None:
        self._handles = list(handles)

    def undo(self) -> None:
        """Remove the hooks. A second call does nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._undone = True
