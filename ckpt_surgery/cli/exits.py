"""How a command ends: with an exit code, and with one line on standard error where something went wrong.

Exit codes: 0 clean, 1 findings, 2 bad input or an internal error, 130 interrupted, 143 ended by SIGTERM, 129 by
SIGHUP.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import typer

from ckpt_surgery.cli.config import ConfigError
from ckpt_surgery.cli.terminal import OutputError, say

_ENDINGS = (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
"""The signals that ask a process to end: a plain kill, and a terminal that is closed."""


class Terminated(KeyboardInterrupt):
    """The process was asked to end by a signal: all that an interrupt from the keyboard undoes is undone."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def finish(body: Callable[[], int], interrupted: Callable[[], str] | None = None) -> None:
    """Run the body of a command and leave with its exit code; whatever goes wrong becomes one line.

    `interrupted` tells, after an interrupt, what is left as what.
    """
    try:
        code = body()
    except (ConfigError, OutputError) as error:
        code = fail(str(error))
    except KeyboardInterrupt as interrupt:
        state = interrupted() if interrupted else "every file is whole, as it was or repaired"
        asked = isinstance(interrupt, Terminated)
        number = interrupt.number if isinstance(interrupt, Terminated) else signal.SIGINT
        say(f"ckpt_surgery: {f'ended by {signal.Signals(number).name}' if asked else 'interrupted'}; {state}")
        code = 128 + number
    except Exception as error:
        from ckpt_surgery.static.discover import TransformersNotFound

        code = fail(str(error)) if isinstance(error, TransformersNotFound) else _fail_as_bug(error)
    raise typer.Exit(code)


@contextmanager
def heeding_endings() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise Terminated, the first time: processes and temporary folders are cleared away.

    A SIGHUP that is ignored, as under nohup, stays so.
    """

    def terminate(number: int, _frame: FrameType | None) -> None:
        for one in before:
            signal.signal(one, signal.SIG_IGN)  # a second one must not interrupt the clearing
        raise Terminated(number)

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set a handler
        return
    before = {one: handler for one in _ENDINGS if (handler := signal.getsignal(one)) is not signal.SIG_IGN}
    for one in before:
        signal.signal(one, terminate)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def fail(message: str) -> int:
    """Say what is wrong; the exit code that goes with it."""
    say(f"ckpt_surgery: error: {message}")
    return 2


def write_file(path: Path, text: str) -> None:
    """Write what `--output` asks for. Raises OutputError where that cannot be done."""
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise OutputError(f"--output {path} cannot be written to: {error.strerror or error}") from None


def check_place(path: Path) -> None:
    """Notice before the work, not after it, that `--output` cannot be written to; nothing in a file is changed.

    Raises ConfigError.
    """
    parent = path.absolute().parent
    try:
        why = "it is a folder" if path.is_dir() else "" if parent.is_dir() else f"there is no folder {parent}"
        new = not why and not path.exists()
        if new or path.is_file():  # a pipe would wait for its reader
            path.open("ab").close()
        if new:
            path.unlink()
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        raise ConfigError(f"--output {path} cannot be written to: {why}")


def _fail_as_bug(error: Exception) -> int:
    if os.environ.get("CKPT_SURGERY_DEBUG") == "1":
        traceback.print_exc()
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return fail(f"{what}: this is a bug in ckpt_surgery; CKPT_SURGERY_DEBUG=1 shows where")
