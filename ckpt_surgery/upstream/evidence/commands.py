"""Commands and their runs, as pieces of Markdown."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from ckpt_surgery.text import fenced, folded
from ckpt_surgery.upstream.evidence.results import CommandRun, Evidence


def exit_word(ran: CommandRun | None) -> str:
    """How a run ended, in a word or a few."""
    if ran is None:
        return "not run"
    return {0: "passed", 1: "failed"}.get(ran.code, f"exit code {ran.code}")


def run_block(ran: CommandRun) -> str:
    """One command and what it wrote."""
    return fenced(f"$ {ran.command}\n{ran.output or '(no output)'}", "console")


def folded_run(title: str, ran: CommandRun) -> str:
    """One run behind a line that says how it ended."""
    return folded(f"{title}: {exit_word(ran)}", run_block(ran))


def console(commands: Iterable[str]) -> str:
    """Commands to type."""
    return fenced("\n".join(f"$ {command}" for command in commands), "console")


def verify_commands(evidence: Evidence) -> list[str]:
    """The commands, one for each family, that measure the rows again; to be run at the top of a checkout."""
    models: dict[str, dict[str, None]] = {}
    for row in evidence.rows:
        models.setdefault(row.family, {})[row.model.partition(" (")[0]] = None  # without the name of a variant
    return [f"PYTHONPATH=src ckpt_surgery verify {shlex.join(names)}" for _, names in sorted(models.items())]
