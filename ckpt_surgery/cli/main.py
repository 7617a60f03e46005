"""The commands: read the options, call the library, render what it returns. No decision about code is made here.

`verify` and `pr` have files of their own; exit codes and errors are `exits`' business.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckpt_surgery.cli.config import Config, ConfigError, OutputFormat, expand_codes, load_config
from ckpt_surgery.cli.exits import finish, write_file
from ckpt_surgery.cli.pr import pr_command
from ckpt_surgery.cli.terminal import progress_bar, say, width_of, write, write_lines
from ckpt_surgery.cli.verify import verify_command
from ckpt_surgery.version import __version__

if TYPE_CHECKING:
    from ckpt_surgery.static.render.text import Report
    from ckpt_surgery.static.results import ApplyResult, Problem

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find and repair gradient checkpointing that does not checkpoint, in transformers models.",
)

Select = Annotated[
    list[str] | None,
    typer.Option(metavar="CODES", help="Only these rules: codes or the start of codes, with commas or given again."),
]
Ignore = Annotated[list[str] | None, typer.Option(metavar="CODES", help="Not these rules; as in --select.")]
Jobs = Annotated[int | None, typer.Option(min=1, metavar="N", help="Worker processes (default: one for each core).")]
IncludeUnsupported = Annotated[
    bool | None,
    typer.Option(
        "--include-unsupported/--no-include-unsupported",
        help="Also look at models without supports_gradient_checkpointing = True.",
    ),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Read every file anew.")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        finish(_print_version)


@app.command("check")
def check_command(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATHS",
            help="Files, folders or a transformers checkout (default: the installed transformers).",
        ),
    ] = None,
    output_format: Annotated[OutputFormat | None, typer.Option(help="How to report (default: text).")] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report to this file.")] = None,
    statistics: Annotated[bool, typer.Option("--statistics", help="Counts by rule instead of findings.")] = False,
    select: Select = None,
    ignore: Ignore = None,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Exit with 0 also where there are findings.")] = False,
    jobs: Jobs = None,
    show_unknown: Annotated[
        bool | None,
        typer.Option("--show-unknown/--no-show-unknown", help="Also show what could not be decided."),
    ] = None,
    show_info: Annotated[bool, typer.Option("--show-info", help="Also show what is no fault.")] = False,
    include_unsupported: IncludeUnsupported = None,
    no_cache: NoCache = False,
) -> None:
    """Report checkpointing that does not work, without running the code."""

    def body() -> int:
        from ckpt_surgery import check
        from ckpt_surgery.codemods import RULES
        from ckpt_surgery.static.render import text as rendering

        config = load_config(paths[0] if paths else None)
        options = _options(config, select, ignore, jobs, include_unsupported, no_cache)
        with progress_bar() as progress:
            result = check(paths or None, progress=progress, **options)
        unknown = config.show_unknown if show_unknown is None else show_unknown
        shown = rendering.report(result, RULES, show_info=show_info, show_unknown=unknown)
        _report_problems(result.problems)
        if not result.files and not result.problems:
            say("warning: no Python file to check was found in the given paths")
        _emit(shown, output_format or config.output_format, output, statistics)
        if result.problems:
            return 2
        return 1 if result.faults and not exit_zero else 0

    finish(body)


@app.command("apply")
def apply_command(
    paths: Annotated[list[Path], typer.Argument(metavar="PATHS", help="Files, folders or a transformers checkout.")],
    diff: Annotated[bool, typer.Option("--diff", help="Print the changes, make none.")] = False,
    check_only: Annotated[
        bool, typer.Option("--check", help="Make no change; exit with 1 where there would be one.")
    ] = False,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Also repairs that may break callers elsewhere.")] = False,
    select: Select = None,
    ignore: Ignore = None,
    jobs: Jobs = None,
    include_unsupported: IncludeUnsupported = None,
    no_cache: NoCache = False,
) -> None:
    """Repair files in place, each as a whole or not at all."""

    def body() -> int:
        from ckpt_surgery import apply

        config = load_config(paths[0])
        options = _options(config, select, ignore, jobs, include_unsupported, no_cache)
        with progress_bar() as progress:
            result = apply(paths, unsafe=unsafe, write=not (diff or check_only), progress=progress, **options)
        _report_problems(result.problems)
        return _report_apply(result, diff, check_only)

    finish(body)


@app.command("rule")
def rule_command(
    code: Annotated[
        str | None, typer.Argument(metavar="CODE", help="A code such as CKPT003 (default: list all rules).")
    ] = None,
) -> None:
    """Explain a rule, or list them all."""

    def body() -> int:
        from ckpt_surgery.codemods import RULES

        if code is None:
            from ckpt_surgery.static.render.text import rule_lines

            write_lines(rule_lines(RULES, width=width_of(sys.stdout)))
            return 0
        for rule in RULES:
            if code.upper() == rule.code or code == rule.name:
                write(f"{rule.code} {rule.name}\n\n{rule.documentation.strip()}\n")
                return 0
        expand_codes([code], [rule.code for rule in RULES], "rule")
        raise ConfigError(f"rule: {code} is the start of several codes: give a whole one, such as {RULES[0].code}")

    finish(body)


app.command("verify")(verify_command)
app.command("pr")(pr_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. `arguments` default to those of the process."""
    for stream in (sys.stdout, sys.stderr):
        # A file name need not be text in the terminal's encoding; printing it must not fail.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        app(args=None if arguments is None else list(arguments), prog_name="ckpt_surgery")
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except KeyboardInterrupt:
        say("ckpt_surgery: interrupted")
        return 130
    return 0


def _print_version() -> int:
    write(f"ckpt_surgery {__version__}\n")
    return 0


def _options(
    config: Config,
    select: list[str] | None,
    ignore: list[str] | None,
    jobs: int | None,
    include_unsupported: bool | None,
    no_cache: bool,
) -> dict[str, Any]:
    """The keyword options that `check` and `apply` share. What the command line says wins over `config`.

    --select also sets the configuration's `ignore` aside: who names a rule wants to see it.
    """
    from ckpt_surgery.codemods import RULES

    known = [rule.code for rule in RULES]
    file = str(config.path)
    chosen = expand_codes(select or (), known, "--select") or expand_codes(config.select, known, f"{file}: select")
    left_out = expand_codes(ignore or (), known, "--ignore")
    if not select and not ignore:
        left_out = expand_codes(config.ignore, known, f"{file}: ignore")
    if not set(chosen or known) - set(left_out):
        raise ConfigError("the options leave no rule to check: --ignore takes all that --select chooses")
    return {
        "select": chosen,
        "ignore": left_out,
        "include_unsupported": config.include_unsupported if include_unsupported is None else include_unsupported,
        "jobs": jobs or config.jobs,
        "cache": not no_cache,
        "exclude": config.exclude,
        "per_file_ignores": {
            pattern: expand_codes(codes, known, f"{file}: per-file-ignores")
            for pattern, codes in config.per_file_ignores.items()
        },
    }


def _report_problems(problems: Sequence[Problem]) -> None:
    for problem in problems:
        say(f"error: {problem}")


def _emit(shown: Report, output_format: OutputFormat, output: Path | None, statistics: bool) -> None:
    """Write the report: the document alone to standard output or `output`, everything else to standard error."""
    from ckpt_surgery.static.render import machine as machine_output
    from ckpt_surgery.static.render import text as rendering

    width = 80 if output else width_of(sys.stdout)
    counts = rendering.statistics_lines(shown, width=width) if statistics else []
    if output_format is OutputFormat.TEXT:
        lines = counts or rendering.finding_lines(shown, width=width)
        lines += rendering.summary_lines(shown, width=width)
        if output is None:
            write_lines(lines)
        else:
            write_file(output, "\n".join(lines) + "\n")
        return
    if output_format is OutputFormat.JSON:
        document = machine_output.to_json(shown, __version__)
    elif output_format is OutputFormat.GITHUB:
        document = machine_output.to_github(shown)
    else:
        document = machine_output.to_sarif(shown, __version__)
    if output is None:
        write(document)
    else:
        write_file(output, document)
    for line in counts + rendering.summary_lines(shown, width=width):
        say(line)


def _report_apply(result: ApplyResult, diff: bool, check_only: bool) -> int:
    from ckpt_surgery.codemods import RULES
    from ckpt_surgery.static.render import text as rendering

    summary = rendering.apply_lines(result, RULES, width=width_of(sys.stderr if diff else sys.stdout))
    if diff:
        for change in result.changes:
            write_lines(change.diff.split("\n")[:-1], diff=True)
        for line in summary:
            say(line)
    else:
        if check_only:
            write_lines([f"would change {rendering.display_path(change.path)}" for change in result.changes])
        write_lines(summary)
    if result.problems:
        return 2
    if check_only:
        return 1 if result.changes else 0
    return 1 if result.written and rendering.repairs_left(result) else 0
