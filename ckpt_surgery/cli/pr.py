"""The command `pr`: read the options, have the series prepared, say what was made and what comes next.

Nothing is ever pushed or opened.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckpt_surgery.cli.config import ConfigError, expand_codes, load_config
from ckpt_surgery.cli.exits import ExitCode, finish, termination_raises
from ckpt_surgery.cli.options import Jobs, Select
from ckpt_surgery.cli.terminal import progress_bar, say, write_lines
from ckpt_surgery.upstream.plan.layout import UPSTREAM

if TYPE_CHECKING:
    from ckpt_surgery.upstream.run.prepare import Delivered, Outcome

OUT = Path("ckpt_surgery-pr")
"""Where the folders of the series go without `--out`."""

_ISSUE = re.compile(rf"https://github\.com/{UPSTREAM}/(issues|pull)/\d+(#[\w-]+)?")


class GroupBy(StrEnum):
    """What makes one series."""

    FAMILY = "family"
    ROOT = "root"
    ALL = "all"


def pr_command(
    checkout: Annotated[Path, typer.Argument(metavar="CHECKOUT", help="A git checkout of transformers.")],
    families: Annotated[
        list[str] | None,
        typer.Option(metavar="FAMILIES", help="Model folders (gpt_bigcode,zamba), with commas or given again."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every model folder that is not deprecated.")] = False,
    select: Select = None,
    group_by: Annotated[
        GroupBy,
        typer.Option(help="A series for each family, for each model with its copies and heirs (root), or one."),
    ] = GroupBy.ROOT,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the folders of the series go.")] = OUT,
    base: Annotated[str, typer.Option(metavar="BRANCH", help="The branch to build on.")] = "main",
    python: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The checkout's own Python (default: its .venv, or this one).")
    ] = None,
    coordination: Annotated[
        str | None, typer.Option(metavar="URL", help="The issue or comment where a maintainer agreed to the work.")
    ] = None,
    include_unreproduced: Annotated[
        bool, typer.Option("--include-unreproduced", help="Also families in which verify shows no fault: to look at.")
    ] = False,
    jobs: Jobs = None,
) -> None:
    """Make patch series for transformers, with the evidence beside them. Nothing is pushed or opened.

    Models, upstream's checkers and its tests are run, before and after: that takes minutes for each series.
    """
    done: list[Delivered] = []

    def body() -> int:
        from ckpt_surgery.errors import UpstreamError
        from ckpt_surgery.upstream.run.prepare import Wishes, prepare

        wishes = Wishes(
            out=out,
            families=_names(families, everything),
            codes=_codes(select),
            by=group_by.value,
            base=base,
            python=python,
            coordination=_checked_url(coordination),
            include_unreproduced=include_unreproduced,
            jobs=jobs or load_config().jobs,
        )
        try:
            with termination_raises(), progress_bar() as progress:

                def step(text: str) -> None:
                    if progress:
                        progress(text, 0, 1)

                outcome = prepare(checkout, wishes, progress=progress, step=step, finished=done.append)
        except UpstreamError:
            if done:
                say(_kept(done))
            raise
        write_lines(_lines(outcome))
        return _exit_code(outcome)

    finish(body, lambda: f"the checkout is as it was; {_kept(done)}")


def _names(families: list[str] | None, everything: bool) -> tuple[str, ...]:
    names = [name.strip() for entry in families or () for name in entry.split(",")]
    names = list(dict.fromkeys(filter(None, names)))
    if everything and names:
        raise ConfigError("--all and --families exclude each other: give one of them")
    if not everything and not names:
        raise ConfigError("no family is named: give --families gpt_bigcode,zamba (model folders), or --all")
    return tuple(names)


def _codes(select: list[str] | None) -> tuple[str, ...]:
    """The rules that were chosen: those for training scripts have nothing to do with upstream's source."""
    from ckpt_surgery.codemods import RULES
    from ckpt_surgery.codemods.declaration import Subject

    known = [rule.code for rule in RULES if rule.subject is Subject.MODEL]
    return tuple(expand_codes(select, known, "--select")) if select else ()


def _checked_url(url: str | None) -> str:
    if url is not None and not _ISSUE.fullmatch(url):
        raise ConfigError(
            f"--coordination {url} is no issue of upstream's: give its address, "
            f"https://github.com/{UPSTREAM}/issues/N, or that of the comment that agrees"
        )
    return url or ""


def _lines(outcome: Outcome) -> list[str]:
    """What was made, what was not and why, and what a human would run next."""
    from ckpt_surgery.text import plural

    lines = []
    for made in outcome.series:
        evidence = made.evidence
        counts = [
            plural(len(evidence.commits), "commit"),
            plural(len(evidence.files), "file"),
            f"{plural(len(_repaired(made)), 'class', 'classes')} repaired",
        ]
        lines.append(f"{evidence.branch}: {evidence.status} ({', '.join(counts)}); see {made.folder / 'evidence.md'}")
        lines += [f"  - {reason}" for reason in evidence.reasons]
        lines += [f"  {made.notice}"] if made.notice else []
    for title, families in (("Left out", outcome.left_out), ("Not repaired", outcome.idle)):
        for reason in dict.fromkeys(families.values()):
            named = ", ".join(family for family, why in families.items() if why == reason)
            lines += ["", f"{title}: {named}", f"  {reason}"]
    for made in outcome.series[:1]:
        rest = ", and likewise for each of the others" if len(outcome.series) > 1 else ""
        lines += ["", f"Next, for {made.evidence.branch}{rest}:", *(f"  {command}" for command in made.next)]
    return lines or ["Nothing to repair."]


def _repaired(made: Delivered) -> set[str]:
    return {row.model for row in made.evidence.rows if row.better}


def _exit_code(outcome: Outcome) -> int:
    """1 where a series is not ready, or faults were found and there is no series."""
    if any(made.evidence.status == "not ready" for made in outcome.series):
        return ExitCode.FINDINGS
    repaired_none = not outcome.series and bool(outcome.left_out or outcome.idle)
    return ExitCode.FINDINGS if repaired_none else ExitCode.CLEAN


def _kept(done: list[Delivered]) -> str:
    """What is left of the work, by name."""
    if not done:
        return "nothing was made"
    return "finished and kept: " + ", ".join(f"{made.evidence.branch} ({made.folder})" for made in done)
