"""Whether modules run untiled: because their caller is tiled itself, or to compare a tiled run with an untiled one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NOW = threading.local()


@contextmanager
def untiled() -> Iterator[None]:
    """Run modules on this thread untiled inside the `with`: their caller is tiled itself."""
    before, _NOW.untiled = runs_untiled(), True
    try:
        yield
    finally:
        _NOW.untiled = before


def runs_untiled() -> bool:
    """Tell whether modules run untiled on this thread now."""
    return getattr(_NOW, "untiled", False)
