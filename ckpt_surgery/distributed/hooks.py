"""Hooks on a model that can be removed together."""

from __future__ import annotations

from collections.abc import Iterable

from torch.utils.hooks import RemovableHandle

from ckpt_surgery.runtime.tools.undo import Undoable


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
