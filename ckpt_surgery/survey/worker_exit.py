"""How a worker process ended, as data, with its last line and its Python stack.

The stack is read from what `faulthandler` writes to standard error. Only `WorkerExit.__str__` puts it into words.
"""

from __future__ import annotations

import contextlib
import re
import signal
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Self

from ckpt_surgery.text import one_line

_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)$')
_DUMP = re.compile(r"^((Current thread|Thread) .*\(most recent call first\):|Stack \(most recent call first\):)$")
_FATAL = re.compile(r"^Fatal Python error")
_DUMP_ENDS = (" in <module>\n", "\n  ...\n")
_MOST_CHARACTERS = 200


class ExitKind(Enum):
    """The reasons for a worker's end."""

    EXITED = auto()
    SIGNALLED = auto()
    RAISED = auto()
    TIMED_OUT = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One Python frame: the file from its package on, the line, and the function."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"

    @classmethod
    def read(cls, text: str) -> tuple[StackFrame, ...]:
        """Return the Python frames of the last stack dump in `text`, innermost first."""
        lines = text.splitlines()
        begin = max((i for i, line in enumerate(lines) if _DUMP.match(line)), default=len(lines))
        frames = []
        for match in filter(None, map(_FRAME.match, lines[begin + 1 :])):
            parts = Path(match["file"]).parts
            top = max(
                (i + 1 for i, part in enumerate(parts) if part in ("site-packages", "dist-packages")), default=-2
            )
            frames.append(cls("/".join(parts[top:]), int(match["line"]), match["function"]))
        return tuple(frames)


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """The end of a worker.

    `code` is its exit code (EXITED) or the number of the signal (SIGNALLED), `error` the line of the exception it
    raised (RAISED), `seconds` the limit it exceeded (TIMED_OUT). `last_line` is the last line it wrote itself and
    `frames` its Python frames, innermost first; both may be empty.
    """

    kind: ExitKind
    code: int = 0
    error: str = ""
    seconds: float = 0.0
    last_line: str = ""
    frames: tuple[StackFrame, ...] = ()

    @classmethod
    def of_code(cls, code: int | None, output: str = "") -> Self:
        """Make one from an exit code (negative for a signal, None if not known) and what the process wrote."""
        line, frames = last_line(output), StackFrame.read(output)
        if code is None:
            return cls(ExitKind.UNKNOWN, last_line=line, frames=frames)
        kind = ExitKind.SIGNALLED if code < 0 else ExitKind.EXITED
        return cls(kind, abs(code), last_line=line, frames=frames)

    @property
    def in_backward(self) -> bool:
        """Whether the worker was in a backward pass."""
        return any(frame.function in ("_engine_run_backward", "backward") for frame in self.frames)

    def __str__(self) -> str:
        match self.kind:
            case ExitKind.EXITED:
                text = f"the process exited with code {self.code}"
            case ExitKind.SIGNALLED:
                name = f"signal {self.code}"
                with contextlib.suppress(ValueError):
                    name = signal.Signals(self.code).name
                also = " (which a system out of memory also sends)" if name == "SIGKILL" else ""
                text = f"the process was killed by {name}{also}"
            case ExitKind.RAISED:
                text = f"it raised {self.error}"
            case ExitKind.TIMED_OUT:
                text = f"it does not end within {self.seconds:g} s"
            case ExitKind.UNKNOWN:
                text = "the process ended without a trace"
        text += f", at {self.frames[0]}" if self.frames else ""
        return text + (f"; the last line it wrote: {self.last_line}" if self.last_line else "")


def is_dump_complete(text: str) -> bool:
    """Tell whether `text` ends with a whole stack dump."""
    return text.endswith(_DUMP_ENDS)


def last_line(text: str) -> str:
    """Return the last line with text that is not part of a stack dump, cut to 200 characters."""
    lines = text.splitlines()
    end = next((i for i, line in enumerate(lines) if _FATAL.match(line) or _DUMP.match(line)), len(lines))
    return next((line[:_MOST_CHARACTERS] for text in reversed(lines[:end]) if (line := one_line(text))), "")
