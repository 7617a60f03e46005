"""A switch that makes tiled modules run untiled on this thread: inside a tile, or for a run to compare with.

It lies below both parts that set it: tiling in `long_sequences`, and the proof in `guarding`.
"""

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
