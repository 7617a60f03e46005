"""What the benchmarks show while they work."""

from __future__ import annotations

import io

from rich.console import Console

from benchmarks.screen import StepBar


def test_the_bar_shows_each_step_once() -> None:
    text = io.StringIO()
    with StepBar(Console(file=text, force_terminal=True, width=80)) as progress:
        progress("reading", 1, 4)
        progress("reading", 2, 4)
        progress("writing", 0, 3)
    assert "2/4" in text.getvalue()
    assert "0/3" in text.getvalue()
