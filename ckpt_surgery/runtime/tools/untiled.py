"""Whether modules run untiled: because what runs them is tiled itself, or is held against the same without."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NOW = threading.local()


@contextmanager
def untiled() -> Iterator[None]:
    """Inside, in this thread, modules run untiled: what runs them is tiled itself."""
    before, _NOW.untiled = runs_untiled(), True
    try:
        yield
    finally:
        _NOW.untiled = before


def runs_untiled() -> bool:
    """Tell whether modules run untiled now."""
    return getattr(_NOW, "untiled", False)
