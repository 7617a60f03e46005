"""The command `pr`: read the options, prepare the series, print what was made and what comes next.

Nothing is ever pushed or opened.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckpt_surgery.cli.config import Config, ConfigError, expand_codes
from ckpt_surgery.cli.exits import ExitCode, finish, termination_raises
from ckpt_surgery.cli.options import Jobs, Select, choice_names, choice_of
from ckpt_surgery.cli.terminal import progress_bar, say, write_lines
from ckpt_surgery.upstream.layout import UPSTREAM
from ckpt_surgery.upstream.options import GroupBy, PrepareOptions

if TYPE_CHECKING:
    from ckpt_surgery.upstream.run.prepare import FinishedSeries, PrepareResult

OUT = Path("ckpt_surgery-pr")
"""The default of `--out`: the folder of the series' folders."""

_ISSUE = re.compile(rf"https://github\.com/{UPSTREAM}/(issues|pull)/\d+(#[\w-]+)?")


def pr_command(
    checkout: Annotated[Path, typer.Argument(metavar="CHECKOUT", help="A git checkout of transformers.")],
    families: Annotated[
        list[str] | None,
        typer.Option(metavar="FAMILIES", help="Model folders (gpt_bigcode,zamba), comma-separated (repeatable)."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every model folder that is not deprecated.")] = False,
    select: Select = None,
    group_by: Annotated[
        GroupBy,
        typer.Option(
            parser=choice_of(GroupBy),
            metavar=choice_names(GroupBy),
            help="One series per family, per model with its copies and subclasses (root), or one for all.",
        ),
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
        bool,
        typer.Option("--include-unreproduced", help="Include families in which verify shows no fault."),
    ] = False,
    jobs: Jobs = None,
) -> None:
    """Make patch series for transformers, with their evidence. Nothing is pushed or opened.

    Models, upstream's checkers and its tests are run before and after, which takes minutes for each series.
    """
    done: list[FinishedSeries] = []

    def body() -> int:
        from ckpt_surgery.codemods import RULES
        from ckpt_surgery.codemods.finding import Subject
        from ckpt_surgery.errors import UpstreamError
        from ckpt_surgery.upstream.evidence.results import SeriesStatus
        from ckpt_surgery.upstream.run.prepare import prepare

        if coordination is not None and not _ISSUE.fullmatch(coordination):
            raise ConfigError(
                f"--coordination {coordination} is not an issue of upstream's: give its address, "
                f"https://github.com/{UPSTREAM}/issues/N, or that of the comment that agrees"
            )
        names = [name.strip() for entry in families or () for name in entry.split(",")]
        names = list(dict.fromkeys(filter(None, names)))
        if everything and names:
            raise ConfigError("--all and --families exclude each other: give one of them")
        if not everything and not names:
            raise ConfigError("no family is named: give --families gpt_bigcode,zamba (model folders), or --all")
        # rules for training scripts do not apply to upstream's source
        codes = [rule.code for rule in RULES if rule.subject is Subject.MODEL]
        options = PrepareOptions(
            out=out,
            families=tuple(names),
            codes=expand_codes(select, codes, "--select") if select else (),
            group_by=group_by,
            base=base,
            python=python,
            coordination=coordination or "",
            include_unreproduced=include_unreproduced,
            jobs=jobs or Config.load().jobs,
        )
        try:
            with termination_raises(), progress_bar() as progress:

                def step(text: str) -> None:
                    if progress:
                        progress(text, 0, 1)

                result = prepare(checkout, options, progress=progress, step=step, finished=done.append)
        except UpstreamError:
            if done:
                say(_kept(done))
            raise
        write_lines(_lines(result))
        unready = any(series.evidence.status is SeriesStatus.NOT_READY for series in result.series)
        unrepaired = not result.series and bool(result.left_out or result.idle)
        return ExitCode.FINDINGS if unready or unrepaired else ExitCode.CLEAN

    finish(body, lambda: f"the checkout is as it was; {_kept(done)}")


def _lines(result: PrepareResult) -> list[str]:
    """Return the lines that say what was made, what was left out and why, and what to run next."""
    from ckpt_surgery.text import listed, plural

    lines: list[str] = []
    branches: dict[str, tuple[str, ...]] = {}
    for series in result.series:
        for reason in series.evidence.reasons:
            branches[reason.text] = (*branches.get(reason.text, ()), series.evidence.branch)
    for series in result.series:
        evidence = series.evidence
        counts = [
            plural(len(evidence.commits), "commit"),
            plural(len(evidence.files), "file"),
            f"{plural(len({row.model for row in evidence.rows if row.better}), 'class', 'classes')} repaired",
        ]
        lines.append(
            f"{evidence.branch}: {evidence.status} ({', '.join(counts)}); see {series.folder / 'evidence.md'}"
        )
        lines += [f"  - {reason}" for reason in evidence.reasons if len(branches[reason.text]) == 1]
        lines += [f"  {series.notice}"] if series.notice else []
    shared = {reason: names for reason, names in branches.items() if len(names) > 1}
    for several in dict.fromkeys(shared.values()):
        lines += ["", f"{listed(several)}:", *(f"  - {reason}" for reason in shared if shared[reason] == several)]
    for title, families in (("Left out", result.left_out), ("Not repaired", result.idle)):
        for omission in dict.fromkeys(families.values()):
            names = ", ".join(family for family, reason in families.items() if reason == omission)
            lines += ["", f"{title}: {names}", f"  {omission}"]
    for series in result.series[:1]:
        rest = ", and likewise for each of the others" if len(result.series) > 1 else ""
        lines += ["", f"Next, for {series.evidence.branch}{rest}:", *(f"  {command}" for command in series.next)]
    return lines or ["Nothing to repair."]


def _kept(done: list[FinishedSeries]) -> str:
    """Return a clause that names the finished series, which are kept."""
    if not done:
        return "nothing was made"
    return "finished and kept: " + ", ".join(f"{series.evidence.branch} ({series.folder})" for series in done)
