"""The command `verify`: read the options, have the models examined, render the reports.

Neither torch nor transformers is imported in this process: workers do that, and work out what a name means too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ckpt_surgery.cli.config import ConfigError, load_config
from ckpt_surgery.cli.exits import check_place, fail, finish, heeding_endings, write_file
from ckpt_surgery.cli.terminal import progress_bar, say, width_of, write, write_lines
from ckpt_surgery.measure import TIMEOUT

if TYPE_CHECKING:
    from ckpt_surgery.measure.report import Report
    from ckpt_surgery.measure.results import Level, Mode
    from ckpt_surgery.survey.targets import SurveyTarget
    from ckpt_surgery.survey.worker_pool import WorkerPool

HTML_FILE = Path("ckpt_surgery-report.html")
"""Where a page goes that `--output` gives no place."""

_MOST_DETAILS = 3
_Word = TypeVar("_Word", bound=str)


class VerifyFormat(StrEnum):
    """How `verify` writes its report."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"
    MARKDOWN = "markdown"


def verify_command(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="A model type (gpt_bigcode), a class, a config.json or its folder, or package.module:factory.",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every model class of the installed transformers.")
    ] = False,
    modes: Annotated[
        list[str] | None,
        typer.Option(metavar="MODES", help="non_reentrant, reentrant, with commas (default: both)."),
    ] = None,
    levels: Annotated[
        list[str] | None,
        typer.Option(metavar="LEVELS", help="all, or some of recompute, set, values, state, cost, ranks."),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Examine each model once more after wrap_blocks; that decides over the exit.")
    ] = False,
    output_format: Annotated[VerifyFormat, typer.Option(help="How to report.")] = VerifyFormat.TEXT,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Write the report to this file (html: {HTML_FILE}).")
    ] = None,
    shard: Annotated[str | None, typer.Option(metavar="I/N", help="Only part I of N of the models.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Worker processes (default: one for each core).")
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="For building, the reference and each mode of a model.")
    ] = TIMEOUT,
    resume: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep finished reports here, and skip those that are here.")
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the code that a model's folder brings along.")
    ] = False,
    show_unbuilt: Annotated[bool, typer.Option("--show-unbuilt", help="Say why a model was not built.")] = False,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Exit with 0 also where a verdict fails.")] = False,
) -> None:
    """Run tiny models, and prove that checkpointing works.

    Each is trained for a step with and without checkpointing; whatever differs is a fault.
    """

    def body() -> int:
        start = perf_counter()
        place = output or (HTML_FILE if output_format is VerifyFormat.HTML else None)
        _check_output(place, output_format)
        wanted = _Wanted(list(models or ()), everything, trust_remote_code, modes, levels, shard, timeout)
        workers = jobs or load_config().jobs
        with heeding_endings():
            reports = _survey(wanted, fix, workers, resume)
        _emit(reports, output_format, place, perf_counter() - start, detailed=not everything, unbuilt=show_unbuilt)
        if not everything and (unbuilt := [report for report in reports if report.status == "not built"]):
            return max(fail(_problem(report)) for report in unbuilt)
        from ckpt_surgery.report.summary import stays_broken

        return 1 if any(map(stays_broken, reports)) and not exit_zero else 0

    def interrupted() -> str:
        if resume is None:
            return "--resume FILE keeps what is finished"
        return f"what is finished is kept in {resume}" if resume.exists() else "nothing was finished yet"

    finish(body, interrupted)


class _Wanted:
    """What the command line asks for, checked. Raises ConfigError."""

    def __init__(
        self,
        names: Sequence[str],
        everything: bool,
        trust_remote_code: bool,
        modes: Sequence[str] | None,
        levels: Sequence[str] | None,
        shard: str | None,
        timeout: float,
    ) -> None:
        from ckpt_surgery.measure.results import LEVELS, MODES
        from ckpt_surgery.survey.targets import TargetError, checked_timeout, parse_shard

        if not names and not everything:
            raise ConfigError("no model is named: give a model type such as gpt_bigcode, a class, a folder, or --all")
        for package in ("torch", "transformers"):
            if find_spec(package) is None:
                raise ConfigError(f"verify needs {package}, which is not installed: pip install ckpt_surgery[torch]")
        self.names, self.everything, self.trust_remote_code = list(names), everything, trust_remote_code
        self.modes: tuple[Mode, ...] = _chosen(modes, MODES, "--modes") or MODES
        words = _chosen(levels, ("all", *LEVELS), "--levels")
        self.levels: str | tuple[Level, ...] = "all"
        if words and "all" not in words:
            self.levels = tuple(level for level in LEVELS if level in words)
        try:
            option = "--timeout"
            self.timeout = checked_timeout(timeout)
            option = "--shard"
            self.shard = parse_shard(shard) if shard is not None else None
        except TargetError as error:
            raise ConfigError(f"{option} {error}") from None

    def targets(self, pool: WorkerPool) -> list[SurveyTarget]:
        """What the names mean. Raises TargetError where one means nothing."""
        from ckpt_surgery.survey.targets import resolve_in

        trusted = self.trust_remote_code
        return resolve_in(pool, names=self.names, everything=self.everything, trust_remote_code=trusted)


def _survey(wanted: _Wanted, fix: bool, workers: int | None, resume: Path | None) -> list[Report]:
    from ckpt_surgery.survey import survey
    from ckpt_surgery.survey.targets import TargetError
    from ckpt_surgery.survey.worker_pool import WorkerPool, WorkerPoolError

    try:
        with WorkerPool() as pool, progress_bar() as progress:
            targets = wanted.targets(pool)
            reports = survey(
                targets,
                modes=wanted.modes,
                levels=wanted.levels,
                fix=fix,
                workers=workers,
                timeout=wanted.timeout,
                resume=resume,
                shard=wanted.shard,
                progress=progress,
                pool=pool,
            )
    except (TargetError, WorkerPoolError) as error:
        raise ConfigError(str(error)) from None
    if wanted.shard and not reports:
        index, count = wanted.shard
        say(f"ckpt_surgery: part {index} of {count} is empty: {len(targets)} in all are to be verified")
    return reports


def _chosen(given: Sequence[str] | None, known: Sequence[_Word], option: str) -> tuple[_Word, ...]:
    """The words that an option lists, in the order of `known`; dashes and underscores are one."""
    words = [word.strip().lower().replace("-", "_") for entry in given or () for word in entry.split(",")]
    words = [word for word in words if word]
    if given and not words:
        raise ConfigError(f"{option} names nothing: it takes {', '.join(known)}")
    for word in words:
        if word not in known:
            near = get_close_matches(word, known, n=1)
            meant = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}"
            raise ConfigError(f"{option} does not know {word}: {meant}")
    return tuple(word for word in known if word in words)


def _check_output(place: Path | None, output_format: VerifyFormat) -> None:
    """Notice before the work, not after it, that the report could not be made or written. Raises ConfigError."""
    if output_format is VerifyFormat.HTML:
        from ckpt_surgery.report.plots import PlotError, need_matplotlib

        try:
            need_matplotlib()
        except PlotError as error:
            raise ConfigError(str(error)) from None
    if place is not None:
        check_place(place)


def _problem(report: Report) -> str:
    """Why there is no verdict on a model that was named, with that name."""
    problem = report.problem or "nothing was measured"
    name = report.target or report.label
    return problem if name in problem else f"{name}: {problem}"


def _emit(
    reports: Sequence[Report],
    output_format: VerifyFormat,
    place: Path | None,
    seconds: float,
    *,
    detailed: bool,
    unbuilt: bool,
) -> None:
    """Write the report: the document alone to standard output or to a file, the rest to standard error."""
    from ckpt_surgery.report.text import survey_lines

    width = 80 if place else width_of(sys.stdout)
    # of a model that is named, standard error tells why it was not built
    lines = survey_lines(reports, width=width, seconds=seconds, show_unbuilt=unbuilt, hint=not detailed)
    if output_format is VerifyFormat.TEXT:
        lines = _details(reports, width) + lines if detailed else lines
        if place is None:
            write_lines(lines)
        else:
            write_file(place, "\n".join(lines) + "\n")
        return
    document = _document(reports, output_format, seconds)
    if place is None:
        write(document)
    else:
        write_file(place, document)
    summary = next((i for i, line in enumerate(lines) if line.startswith("Verified ")), len(lines))
    for line in [*lines[summary:], *([f"The report is in {place}."] if place else [])]:
        say(line)


def _document(reports: Sequence[Report], output_format: VerifyFormat, seconds: float) -> str:
    if output_format is VerifyFormat.JSON:
        from ckpt_surgery.report.json_document import survey_json

        return survey_json(reports, seconds=seconds)
    if output_format is VerifyFormat.MARKDOWN:
        from ckpt_surgery.report.markdown import survey_markdown

        return survey_markdown(reports)
    from ckpt_surgery.report.html import html_page

    return html_page(reports)


def _details(reports: Sequence[Report], width: int) -> list[str]:
    """All about the only model, or about the first ones with something wrong."""
    from ckpt_surgery.report.summary import worth_telling

    shown = reports if len(reports) == 1 else list(filter(worth_telling, reports))[:_MOST_DETAILS]
    return [line for report in shown for line in (*report.lines(width=width), "")]
