"""What the benchmarks print their tables and their progress on."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from ckpt_surgery.static.results import Progress


def console_of(plain_width: int) -> Console:
    """Return the standard output, `plain_width` columns wide where it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=plain_width)


def progress_bar() -> AbstractContextManager[Progress | None]:
    """Make a progress bar on stderr where that is a terminal."""
    console = Console(stderr=True)
    return StepBar(console) if console.is_terminal else nullcontext()


class StepBar:
    """One line per step of the work, used as `with StepBar(console) as progress`."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Bar(*columns, console=console, transient=True)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def __call__(self, step: str, done: int, total: int) -> None:
        """Show that `done` of `total` files are through the step named `step`."""
        if step not in self._tasks:
            self._tasks[step] = self._bar.add_task(step, total=total)
        self._bar.update(self._tasks[step], completed=done, total=total)
