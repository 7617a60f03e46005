"""What the benchmarks print their tables on."""

from __future__ import annotations

from rich.console import Console


def console_of(plain_width: int) -> Console:
    """The standard output, `plain_width` columns wide where it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=plain_width)
