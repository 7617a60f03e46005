"""The command `check`: read the options, run the rules, render what they find."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckpt_surgery.cli.config import Config, ConfigError, OutputFormat
from ckpt_surgery.cli.exits import ExitCode, finish
from ckpt_surgery.cli.options import (
    REPORT,
    ExitZero,
    Ignore,
    IncludeUnsupported,
    Jobs,
    NoCache,
    Output,
    Select,
    analysis_options,
    choice_names,
    choice_of,
    named_paths,
)
from ckpt_surgery.cli.terminal import (
    PLAIN_WIDTH,
    check_writable,
    progress_bar,
    say,
    width_of,
    write_document,
    write_report,
)
from ckpt_surgery.version import __version__

if TYPE_CHECKING:
    from ckpt_surgery.static.render.report import CheckReport


def check_command(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATHS",
            help="Files, notebooks, folders or a checkout of transformers (default: the installed transformers).",
        ),
    ] = None,
    output_format: Annotated[
        OutputFormat | None,
        typer.Option(
            parser=choice_of(OutputFormat),
            metavar=choice_names(OutputFormat),
            rich_help_panel=REPORT,
            help="Report format (default: text).",
        ),
    ] = None,
    output: Output = None,
    statistics: Annotated[
        bool, typer.Option("--statistics", rich_help_panel=REPORT, help="Show counts by rule instead of findings.")
    ] = False,
    select: Select = None,
    ignore: Ignore = None,
    exit_zero: ExitZero = False,
    jobs: Jobs = None,
    show_unknown: Annotated[
        bool | None,
        typer.Option("--show-unknown/--no-show-unknown", rich_help_panel=REPORT, help="Also show undecided findings."),
    ] = None,
    show_info: Annotated[
        bool, typer.Option("--show-info", rich_help_panel=REPORT, help="Also show findings that are not faults.")
    ] = False,
    include_unsupported: IncludeUnsupported = None,
    no_cache: NoCache = False,
    baseline: Annotated[
        Path | None,
        typer.Option(
            readable=False, metavar="FILE", help="Leave out the findings in FILE; create it if it does not exist."
        ),
    ] = None,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Rewrite the baseline with the current findings.")
    ] = False,
    since: Annotated[
        str | None, typer.Option(metavar="REV", help="Only report lines changed since this git revision.")
    ] = None,
) -> None:
    """Report faulty gradient checkpointing. No code is run."""

    def body() -> int:
        from ckpt_surgery.codemods import RULES
        from ckpt_surgery.static.baseline import without_known
        from ckpt_surgery.static.check import check
        from ckpt_surgery.static.discover import installed_models
        from ckpt_surgery.static.render.report import CheckReport
        from ckpt_surgery.static.since import ChangedLines

        if output is not None:
            check_writable(output)
        places = named_paths(paths or ())
        config = Config.load(places[0] if places else None)
        options = analysis_options(config, select, ignore, jobs, include_unsupported, no_cache)
        changed = ChangedLines.since(places or [installed_models()], since) if since is not None else None
        known = baseline or config.baseline
        if known is None and update_baseline:
            raise ConfigError("--update-baseline writes the file of --baseline: give that too")
        with progress_bar() as progress:
            result = check(places or None, progress=progress, **options)
        if known is not None:
            codes = {*(options["select"] or [rule.code for rule in RULES])} - {*options["ignore"]}
            result = without_known(result, known, places=places, codes=codes, update=update_baseline)
        if changed is not None:
            result = replace(result, findings=tuple(filter(changed.cover, result.findings)))
        unknown = config.show_unknown if show_unknown is None else show_unknown
        report = CheckReport.of(result, RULES, show_info=show_info, show_unknown=unknown)
        for problem in result.problems:
            say(f"error: {problem}")
        if not result.files and not result.problems:
            say("warning: no Python file to check was found in the given paths")
        _write(report, output_format or config.output_format, output, statistics)
        if result.problems:
            return ExitCode.ERROR
        return ExitCode.FINDINGS if result.faults and not exit_zero else ExitCode.CLEAN

    finish(body)


def _write(report: CheckReport, output_format: OutputFormat, output: Path | None, statistics: bool) -> None:
    """Write the report to standard output or `output`; counts and summary of a document go to standard error."""
    width = PLAIN_WIDTH if output else width_of(sys.stdout)
    counts = report.statistics_lines(width=width) if statistics else []
    summary = report.summary_lines(width=width)
    if output_format is OutputFormat.TEXT:
        findings = [] if counts else [*report.finding_lines(width=width), *report.information_lines()]
        write_report([*counts, *findings, *summary], output)
        return
    if output_format is OutputFormat.HTML:
        from ckpt_surgery.report.check_page import to_html

        document = to_html(report)
    else:
        from ckpt_surgery.static.render.machine import to_github, to_json, to_sarif

        render = to_json if output_format is OutputFormat.JSON else to_sarif
        document = to_github(report) if output_format is OutputFormat.GITHUB else render(report, __version__)
    write_document(document, output)
    for line in [*counts, *summary]:
        say(line)
