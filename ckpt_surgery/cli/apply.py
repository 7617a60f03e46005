"""The command `apply`: read the options, repair the files, sum up what changed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ckpt_surgery.cli.config import Config
from ckpt_surgery.cli.exits import ExitCode, finish
from ckpt_surgery.cli.options import Ignore, IncludeUnsupported, Jobs, NoCache, Select, analysis_options, named_paths
from ckpt_surgery.cli.terminal import progress_bar, say, width_of, write_lines

if TYPE_CHECKING:
    from ckpt_surgery.static.results import ApplyResult


def apply_command(
    paths: Annotated[list[str], typer.Argument(metavar="PATHS", help="Files, folders or a transformers checkout.")],
    diff: Annotated[bool, typer.Option("--diff", help="Print the changes without making them.")] = False,
    check_only: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with 1 if something would change.")
    ] = False,
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Also make repairs that may break callers elsewhere.")
    ] = False,
    select: Select = None,
    ignore: Ignore = None,
    jobs: Jobs = None,
    include_unsupported: IncludeUnsupported = None,
    no_cache: NoCache = False,
) -> None:
    """Repair files in place, each as a whole or not at all.

    What works is left alone, such as inline branches outside of transformers; `--select CKPT002` replaces these too.
    """

    def body() -> int:
        from ckpt_surgery.static.apply import apply

        places = named_paths(paths)
        config = Config.load(places[0])
        options = analysis_options(config, select, ignore, jobs, include_unsupported, no_cache)
        with progress_bar() as progress:
            result = apply(places, unsafe=unsafe, write=not (diff or check_only), progress=progress, **options)
        for problem in result.problems:
            say(f"error: {problem}")
        _write(result, diff, check_only)
        if result.problems:
            return ExitCode.ERROR
        if check_only:
            return ExitCode.FINDINGS if result.changes else ExitCode.CLEAN
        return ExitCode.FINDINGS if result.written and result.repairs_left else ExitCode.CLEAN

    finish(body)


def _write(result: ApplyResult, diff: bool, check_only: bool) -> None:
    """Write the summary to standard output, or the diff alone, with the summary on standard error."""
    from ckpt_surgery.codemods import RULES
    from ckpt_surgery.static.render.report import apply_lines, display_path

    summary = apply_lines(result, RULES, width=width_of(sys.stderr if diff else sys.stdout))
    if diff:
        for change in result.changes:
            write_lines(change.diff.split("\n")[:-1], diff=True)
        for line in summary:
            say(line)
        return
    if check_only:
        write_lines([f"would change {display_path(change.path)}" for change in result.changes])
    write_lines(summary)
