"""How a command ends: with an exit code, and with one line on standard error if something went wrong."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType

import typer

from ckpt_surgery.cli.terminal import say
from ckpt_surgery.errors import CkptSurgeryError
from ckpt_surgery.text import one_line

_TERMINATING = (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
"""The signals that ask a process to end: a plain kill, and the closing of its terminal."""


class ExitCode(IntEnum):
    """The exit codes of every command. A command that a signal ends exits with 128 plus the signal's number."""

    CLEAN = 0
    FINDINGS = 1
    ERROR = 2
    """Bad input, or an internal error."""


class Terminated(KeyboardInterrupt):
    """A signal asked the process to end. It unwinds like Ctrl-C, so that everything is cleaned up."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def finish(body: Callable[[], int], after_interrupt: Callable[[], str] | None = None) -> None:
    """Run the body of a command and exit with its code; any error becomes one line.

    `after_interrupt` says what an interrupt leaves behind.
    """
    try:
        code = body()
    except CkptSurgeryError as error:
        code = fail(str(error))
    except KeyboardInterrupt as interrupt:
        state = after_interrupt() if after_interrupt else "every file is whole, as it was or repaired"
        number = interrupt.number if isinstance(interrupt, Terminated) else signal.SIGINT
        ended = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
        say(f"ckpt_surgery: {ended}; {state}")
        code = 128 + number
    except Exception as error:
        if os.environ.get("CKPT_SURGERY_DEBUG") == "1":
            traceback.print_exc()
        line = one_line(f"{type(error).__name__}: {error}")
        code = fail(f"{line}: this is a bug in ckpt_surgery; CKPT_SURGERY_DEBUG=1 shows where")
    raise typer.Exit(int(code))


@contextmanager
def termination_raises() -> Iterator[None]:
    """Have the first SIGTERM or SIGHUP raise Terminated, so that processes and temporary folders are cleaned up.

    A SIGHUP that is ignored, as under nohup, stays ignored.
    """

    def terminate(number: int, _frame: FrameType | None) -> None:
        for handled in previous:
            signal.signal(handled, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
        raise Terminated(number)

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set a handler
        return
    previous = {
        number: handler for number in _TERMINATING if (handler := signal.getsignal(number)) is not signal.SIG_IGN
    }
    for number in previous:
        signal.signal(number, terminate)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def fail(message: str) -> ExitCode:
    """Print what is wrong on standard error, and return the exit code for errors."""
    say(f"ckpt_surgery: error: {message}")
    return ExitCode.ERROR
