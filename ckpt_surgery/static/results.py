"""The results of `check` and `apply`: what Python callers read and the command line renders."""

from __future__ import annotations

import difflib
import errno
import os
import re
import traceback
from dataclasses import dataclass
from typing import Protocol

from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.codemods.repair import SourceRepair
from ckpt_surgery.text import error_line

FAULTS = (Applicability.SAFE, Applicability.UNSAFE)
"""The findings of these kinds make the exit code 1; the others inform."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A file or path that could not be read, checked or written; the message is one line: why, and what to do."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"

    @classmethod
    def bug(cls, path: str, doing: str, error: Exception) -> Problem:
        """Report that this package itself failed: at the file `path`, or in general if that is the code of a rule."""
        if os.environ.get("CKPT_SURGERY_DEBUG") == "1":
            traceback.print_exception(error)
        return cls(path, f"{doing} failed ({error_line(error)}): this is a bug in ckpt_surgery, please report it")

    @classmethod
    def unreadable(cls, path: str, error: OSError) -> Problem:
        """Say why the system could not read a path."""
        match error.errno:
            case errno.ELOOP:
                why = "is a cycle of symbolic links: not followed; remove the link"
            case errno.ENOENT if os.path.islink(path):
                why = "is a symbolic link to nothing: remove or repair it"
            case errno.ENOENT:
                why = "no such file or folder: check the path"
            case errno.EACCES | errno.EPERM:
                why = "may not be read: change its permissions or exclude it"
            case _:
                why = f"cannot be read: {error.strerror or error}"
        return cls(path, why)


@dataclass(frozen=True, slots=True)
class Note:
    """A note on a file, for a summary. `line` is 0 for the whole file."""

    path: str
    text: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}" if self.line else f"{self.path}: {self.text}"


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file before and after the repairs.

    `codes` are those of the rules that changed it, and `repairs` what was changed, round by round. `encoding` is that
    of the file, and `bom` tells whether it begins with a byte order mark, which neither text has.
    """

    path: str
    before: str
    after: str
    codes: tuple[str, ...]
    repairs: tuple[tuple[SourceRepair, ...], ...] = ()
    encoding: str = "utf-8"
    bom: bool = False

    @property
    def diff(self) -> str:
        """The unified diff, with `a/` and `b/` prefixes, as `git apply` reads it."""
        path = self.path.lstrip("/")
        lines = difflib.unified_diff(lines_of(self.before), lines_of(self.after), f"a/{path}", f"b/{path}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def lines_of(text: str) -> list[str]:
    """Split a text into lines as git counts them: only a line feed ends one."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The findings of `check`, sorted by place. `suppressed` counts those removed by comments and per-file ignores."""

    findings: tuple[Finding, ...]
    problems: tuple[Problem, ...]
    files: int
    suppressed: int
    seconds: float
    notes: tuple[Note, ...] = ()

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings that make the exit code 1: safe and unsafe ones."""
        return tuple(finding for finding in self.findings if finding.applicability in FAULTS)


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The changes of `apply`, or those it would make if `written` is False.

    Attributes:
        findings: the findings before the changes.
        left: the findings after them, with those whose repair could not be written.
        notes: what else the summary says: why a `# Copied from` comment was removed, why a file is left alone.
        together: groups of paths that one finding repairs together: a part of a group would be half a repair.
        repaired: the findings that were repaired, round by round. Those of later rounds are not in `findings`, and
            their lines are those of the text in which they were found.
        unsafe: whether unsafe repairs were asked for.
    """

    changes: tuple[FileChange, ...]
    findings: tuple[Finding, ...]
    left: tuple[Finding, ...]
    problems: tuple[Problem, ...]
    notes: tuple[Note, ...]
    files: int
    written: bool
    seconds: float
    together: tuple[tuple[str, ...], ...] = ()
    repaired: tuple[Finding, ...] = ()
    unsafe: bool = False

    @property
    def repairs_left(self) -> tuple[Finding, ...]:
        """The findings that should have been repaired and were not: safe ones."""
        return tuple(finding for finding in self.left if finding.applicability is Applicability.SAFE)


class Progress(Protocol):
    """A callback for the progress of work: `done` of `total` files in the step named `step`."""

    def __call__(self, step: str, done: int, total: int) -> None: ...
