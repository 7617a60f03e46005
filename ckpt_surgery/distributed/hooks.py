"""Hooks that look at a model until they are removed, as a context manager."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from torch.utils.hooks import RemovableHandle


class Removable:
    """Hooks until `remove`, or for the length of a `with`."""

    def __init__(self, handles: Iterable[RemovableHandle] = ()) -> None:
        self._handles = list(handles)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Look no more. A second time does nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
