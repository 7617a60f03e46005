"""The frozen results of `check` and `apply`: what the command line renders and Python callers read."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Protocol

from ckpt_surgery.codemods.finding import Applicability, Finding


@dataclass(frozen=True, slots=True)
class Problem:
    """A file or path that could not be dealt with, in one line: what, where, why, what to do."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file as it was and as the codemods make it. `codes` names the rules that changed it."""

    path: str
    before: str
    after: str
    codes: tuple[str, ...]

    @property
    def diff(self) -> str:
        """The unified diff, with `a/` and `b/` prefixes, as `git apply` reads it."""
        path = self.path.lstrip("/")
        lines = difflib.unified_diff(_lines(self.before), _lines(self.after), f"a/{path}", f"b/{path}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """Lines as git counts them: only a line feed ends one."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What `check` saw. `findings` are sorted by place; `suppressed` counts the `# ckpt: ignore` ones."""

    findings: tuple[Finding, ...]
    problems: tuple[Problem, ...]
    files: int
    suppressed: int
    seconds: float

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings that make the exit code 1: safe and unsafe ones."""
        return tuple(f for f in self.findings if f.applicability in (Applicability.SAFE, Applicability.UNSAFE))


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """What `apply` did, or would do where `written` is False.

    `found` are the findings before, `left` those after the changes. `notes` are sentences for the
    summary: a `# Copied from` comment that had to go and why, a file left alone because a second run
    would change it again. `together` are paths that one repair edits at once: each alone would be half of it.
    `repaired` are the findings whose repairs were made, round after round: those of later rounds are not among the
    `found`, and their lines are those of the text that they were found in.
    """

    changes: tuple[FileChange, ...]
    found: tuple[Finding, ...]
    left: tuple[Finding, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    files: int
    written: bool
    seconds: float
    together: tuple[tuple[str, ...], ...] = ()
    repaired: tuple[Finding, ...] = ()


class Progress(Protocol):
    """Called as work goes on: `done` of `total` files in the step named `step`."""

    def __call__(self, step: str, done: int, total: int) -> None: ...
