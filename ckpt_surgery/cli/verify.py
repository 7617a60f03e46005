"""The command `verify`: read the options, have worker processes examine the models, write the reports.

Neither torch nor transformers is imported in this process: the workers do that, and resolve the names.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ckpt_surgery.cli.config import Config, ConfigError
from ckpt_surgery.cli.exits import ExitCode, fail, finish, termination_raises
from ckpt_surgery.cli.options import REPORT, WORK, ExitZero, Jobs, Output, Timeout, choice_names, choice_of, time_limit
from ckpt_surgery.cli.terminal import (
    PLAIN_WIDTH,
    check_writable,
    progress_bar,
    say,
    width_of,
    write_document,
    write_report,
)
from ckpt_surgery.measure import TIMEOUT
from ckpt_surgery.optional import need_runtime
from ckpt_surgery.text import plural

if TYPE_CHECKING:
    from ckpt_surgery.measure.report import Report
    from ckpt_surgery.measure.results import Level

HTML_FILE = Path("ckpt_surgery-report.html")
"""Where an HTML page goes without `--output`."""

_MOST_DETAILS = 3
"""How many failing models are shown in full: the table below them has all."""
_Word = TypeVar("_Word", bound=str)


class VerifyFormat(StrEnum):
    """The formats of the report of `verify`."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"
    MARKDOWN = "markdown"


def verify_command(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="A model type (gpt_bigcode), a class, a config.json or its folder, or FILE.py:factory.",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every model class of the installed transformers.")
    ] = False,
    modes: Annotated[
        list[str] | None,
        typer.Option(metavar="MODES", help="non_reentrant, reentrant, comma-separated (default: both)."),
    ] = None,
    levels: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LEVELS", help="all, or some of run, recompute, set, values, state, cost, loop, precision, ranks."
        ),
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="With --all, also judge loop and precision; takes twice as long.")
    ] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="Examine each model again after wrap_blocks; that decides the exit code.")
    ] = False,
    device: Annotated[
        str,
        typer.Option(metavar="DEVICE", help="Where models run, such as cuda (default: where they are built)."),
    ] = "",
    output_format: Annotated[
        VerifyFormat,
        typer.Option(
            parser=choice_of(VerifyFormat),
            metavar=choice_names(VerifyFormat),
            rich_help_panel=REPORT,
            help=f"Report format; html goes to {HTML_FILE} without --output.",
        ),
    ] = VerifyFormat.TEXT,
    output: Output = None,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", rich_help_panel=WORK, help="Only part I of N of the models.")
    ] = None,
    jobs: Jobs = None,
    timeout: Timeout = TIMEOUT,
    resume: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            metavar="FILE",
            rich_help_panel=WORK,
            help="Keep finished reports in this file, and skip those already there.",
        ),
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the code in a model's folder.")
    ] = False,
    show_unbuilt: Annotated[
        bool, typer.Option("--show-unbuilt", rich_help_panel=REPORT, help="Say why a model was not built.")
    ] = False,
    exit_zero: ExitZero = False,
) -> None:
    """Run tiny models and prove that checkpointing works.

    Each is trained for one step with and without checkpointing; every difference is a fault.
    """

    def body() -> int:
        start = perf_counter()
        file = output or (HTML_FILE if output_format is VerifyFormat.HTML else None)
        if file is not None:
            check_writable(file)
        if output_format is VerifyFormat.HTML:
            from ckpt_surgery.report.plots import need_matplotlib

            need_matplotlib()
        if not models and not everything:
            raise ConfigError("no model is named: give a model type such as gpt_bigcode, a class, a folder, or --all")
        if models and everything:
            raise ConfigError("--all and a named model exclude each other: give one of them")
        need_runtime("verify")
        from ckpt_surgery.measure.results import MODES
        from ckpt_surgery.survey import survey
        from ckpt_surgery.survey.resolve import resolve_in
        from ckpt_surgery.survey.target import TargetError, parse_shard
        from ckpt_surgery.survey.worker_pool import WorkerPool

        options: dict[str, Any] = {"modes": _chosen(modes, MODES, "--modes") or MODES}
        options |= {"levels": _judged(levels, deep, everything), "timeout": time_limit(timeout), "resume": resume}
        try:
            part = parse_shard(shard) if shard is not None else None
        except TargetError as error:
            raise ConfigError(f"--shard {error}") from None
        options |= {"workers": jobs or Config.load().jobs, "shard": part, "fix": fix}
        on_device: dict[str, Any] = {"device": device} if device else {}
        with termination_raises(), WorkerPool() as pool, progress_bar() as progress:
            named = {"names": list(models or ()), "everything": everything, "trust_remote_code": trust_remote_code}
            targets = resolve_in(pool, **named, **on_device)
            reports = survey(targets, **options, progress=progress, pool=pool, **on_device)
        if part and not reports:
            classes = plural(len(targets), "class", "classes")
            say(f"ckpt_surgery: part {part[0]} of {part[1]} is empty: the names mean {classes}")
        _write(reports, output_format, file, perf_counter() - start, detailed=not everything, unbuilt=show_unbuilt)
        if not everything and (unbuilt := [report for report in reports if report.status == "not built"]):
            return max(
                fail(f"{report.target or report.label}: {report.problem or 'nothing was measured'}")
                for report in unbuilt
            )

        broken = any(report.stays_broken for report in reports)
        return ExitCode.FINDINGS if broken and not exit_zero else ExitCode.CLEAN

    def after_interrupt() -> str:
        if resume is None:
            return "--resume FILE keeps what is finished"
        return f"what is finished is kept in {resume}" if resume.exists() else "nothing was finished yet"

    finish(body, after_interrupt)


def _judged(levels: Sequence[str] | None, deep: bool, everything: bool) -> tuple[Level, ...]:
    """Return the levels that the options ask for. Raises ConfigError if the options contradict each other."""
    from ckpt_surgery.measure.results import LEVELS, LONE_LEVELS, QUICK_LEVELS

    chosen = _chosen(levels, ("all", *LEVELS), "--levels")
    if deep and chosen:
        raise ConfigError("--deep and --levels exclude each other: give one of them")
    if chosen and "all" not in chosen:
        return tuple(level for level in LEVELS if level in chosen)
    return QUICK_LEVELS if everything and not chosen and not deep else LONE_LEVELS


def _chosen(given: Sequence[str] | None, choices: Sequence[_Word], option: str) -> tuple[_Word, ...]:
    """Return the choices that an option lists, in the order of `choices`. Dashes count as underscores."""
    words = [word.strip().lower().replace("-", "_") for entry in given or () for word in entry.split(",")]
    words = [word for word in words if word]
    if given and not words:
        raise ConfigError(f"{option} names nothing: it takes {', '.join(choices)}")
    for word in words:
        if word not in choices:
            near = get_close_matches(word, choices, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(choices)}"
            raise ConfigError(f"{option} does not know {word}: {hint}")
    return tuple(choice for choice in choices if choice in words)


def _write(
    reports: Sequence[Report],
    output_format: VerifyFormat,
    file: Path | None,
    seconds: float,
    *,
    detailed: bool,
    unbuilt: bool,
) -> None:
    """Write the report to standard output or to a file; the summary of a document goes to standard error."""
    from ckpt_surgery.report.summary import Overview
    from ckpt_surgery.report.text import survey_summary, survey_tables

    width = PLAIN_WIDTH if file else width_of(sys.stdout)
    # why a named model was not built is said only once, on standard error
    summary = survey_summary(reports, width=width, seconds=seconds, hint=not detailed and not unbuilt)
    if output_format is VerifyFormat.TEXT:
        # shown in full: the only model, if it was built, or the first ones that fail
        candidates = reports if detailed else []
        if len(reports) == 1:
            full = [report for report in candidates if report.status != "not built"]
        else:
            full = [report for report in candidates if report.worth_telling][:_MOST_DETAILS]
        details = [line for report in full for line in (*report.lines(width=width), "")]
        write_report(
            [*details, *survey_tables(reports, width=width, show_unbuilt=unbuilt and not detailed), *summary], file
        )
        return
    if output_format is VerifyFormat.JSON:
        document = Overview(reports).to_json(seconds=seconds)
    elif output_format is VerifyFormat.MARKDOWN:
        from ckpt_surgery.report.markdown import survey_markdown

        document = survey_markdown(reports)
    else:
        from ckpt_surgery.report.html import html_page

        document = html_page(reports)
    write_document(document, file)
    for line in [*summary, *([f"The report is in {file}."] if file else [])]:
        say(line)
