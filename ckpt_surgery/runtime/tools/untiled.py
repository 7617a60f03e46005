"""A switch that makes tiled modules run untiled on this thread: inside a tile, or for a run to compare with.

It is here because two parts of the package set it: tiling in `long_sequences`, and the proof in `guarding`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NOW = threading.local()


@contextmanager
def untiled() -> Iterator[None]:
    """Run tiled modules untiled on this thread, inside the `with`."""
    before, _NOW.untiled = runs_untiled(), True
    try:
        yield
    finally:
        _NOW.untiled = before


def runs_untiled() -> bool:
    """Tell whether modules run untiled on this thread now."""
    return getattr(_NOW, "untiled", False)
