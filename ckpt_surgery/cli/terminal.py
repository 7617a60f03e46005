"""Write the output of the commands: coloured lines on a terminal, documents unchanged, a progress bar.

rich is loaded only if the output is a terminal.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ckpt_surgery.errors import CkptSurgeryError

if TYPE_CHECKING:
    from ckpt_surgery.static.results import Progress

_STYLES = {
    r"^\S.*$": "bold",
    r"^  \d+:\d+(?= )": "cyan",
    r"\bCKPT\d{3}\b": "bold red",
    r"\[(safe|unsafe|info|unknown)\]": "dim",
    r"`[^`]+`": "green",
    r"\bFAILED\b": "bold red",
    r"(?<=  )ok(?=  |$)": "green",
}
_DIFF_STYLES = {r"^\+.*$": "green", r"^-.*$": "red", r"^@@.*$": "cyan", r"^(\+\+\+|---) .*$": "bold"}

PLAIN_WIDTH = 80
"""The columns of text that does not go to a terminal."""
PATIENCE = 2.0
"""Seconds that a command may take before it shows its progress."""


class OutputError(CkptSurgeryError, OSError):
    """Standard output, or the file given instead, cannot be written to."""


def width_of(stream: TextIO) -> int:
    """Return the width to write for: the terminal's own, or `PLAIN_WIDTH` if the stream is not a terminal."""
    return max(40, shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns) if stream.isatty() else PLAIN_WIDTH


def write(text: str) -> None:
    """Write exactly this text to standard output. A reader that stops early (`| head`) is not an error.

    Raises:
        OutputError: standard output cannot be written to.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _silence(sys.stdout)
    except OSError as error:
        raise unwritable_output(error) from None


def unwritable_output(error: OSError) -> OutputError:
    """Return the error for a standard output that cannot be written to, and write nothing more there."""
    _silence(sys.stdout)
    return OutputError(f"standard output cannot be written to: {error.strerror or error}")


def write_lines(lines: Sequence[str], *, diff: bool = False) -> None:
    """Write lines to standard output, in colour if it is a terminal."""
    if not lines:
        return
    text = "\n".join(lines) + "\n"
    if not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        write(text)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    with console.capture() as capture:
        for line in lines:
            styled = Text(line)
            for pattern, style in (_DIFF_STYLES if diff else _STYLES).items():
                styled.highlight_regex(pattern, style)
            console.print(styled, soft_wrap=True)
    write(capture.get())


def write_document(text: str, path: Path | None) -> None:
    """Write exactly this text to a file, or to standard output.

    Raises:
        OutputError: it cannot be written there.
    """
    if path is None:
        write(text)
        return
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise OutputError(f"{path} cannot be written to: {error.strerror or error}") from None


def write_report(lines: Sequence[str], path: Path | None) -> None:
    """Write lines to a file, or to standard output, in colour if that is a terminal.

    Raises:
        OutputError: they cannot be written there.
    """
    if path is None:
        write_lines(lines)
    else:
        write_document("\n".join(lines) + "\n", path)


def check_writable(path: Path, option: str = "--output") -> None:
    """Check before the work that the file of an option can be written to. No file is changed.

    Raises:
        OutputError: it is a folder, its folder does not exist, or permission is missing.
    """
    try:
        parent = path.absolute().parent
        reason = "it is a folder" if path.is_dir() else "" if parent.is_dir() else f"there is no folder {parent}"
        new = not reason and not path.exists()
        if new or path.is_file():  # opening a named pipe would wait for its reader
            path.open("ab").close()
        if new:
            path.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise OutputError(f"{option} {path} cannot be written to: {reason}")


def say(message: str) -> None:
    """Print one line to standard error."""
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress_bar(*, after: float = 0.0) -> Iterator[Progress | None]:
    """Yield a progress callback that draws a bar on standard error; None if that is not a terminal.

    A total of 0 means that it is unknown. Nothing is drawn in the first `after` seconds.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, visible=not after)
        shown = threading.Timer(after, bar.update, [task], {"visible": True})
        shown.daemon = True
        shown.start()

        def advance(step: str, done: int, total: int) -> None:
            bar.update(task, description=step, completed=done, total=total or None)

        try:
            yield advance
        finally:
            shown.cancel()


def _silence(stream: TextIO) -> None:
    """Redirect the stream to /dev/null, so that the interpreter's own flush at exit stays quiet."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
