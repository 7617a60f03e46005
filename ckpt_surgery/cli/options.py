"""The options that several commands share, each declared once, and the values that options take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias, TypedDict, TypeVar

import typer

from ckpt_surgery.cli.config import Config, ConfigError, expand_codes
from ckpt_surgery.measure import TIMEOUT_HELP
from ckpt_surgery.static.options import COUNT, is_count

REPORT, WORK = "The report", "The work"
"""Two groups of options in the help."""
_Choice = TypeVar("_Choice", bound=StrEnum)


def choice_of(choices: type[_Choice]) -> Callable[[str], _Choice]:
    """Return the parser of an option that takes one of `choices`."""

    def parse(text: str) -> _Choice:
        try:
            return choices(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(choices)}") from None

    return parse


def choice_names(choices: type[StrEnum]) -> str:
    """Return the choices of an option as its metavar: `[text|json]`."""
    return f"[{'|'.join(choices)}]"


def named_paths(texts: Sequence[str]) -> list[Path]:
    """Return the paths that the command line names. They stay text until here: `Path("")` is the working folder.

    Raises:
        OptionError: An empty path.
    """
    from ckpt_surgery.static.discover import checked_path

    return [Path(checked_path(text)) for text in texts]


_MOST = 10**9
"""The largest number that an option takes: far above any real batch, length or number of processes."""


def count(text: str) -> int:
    """Parse the value of an option that takes a number, 1 or more."""
    digits = text.lstrip("0")
    number = int(digits[: len(str(_MOST)) + 1]) if digits.isdecimal() else 0  # cut: `int` refuses thousands
    if not is_count(number):
        raise typer.BadParameter(f"{text!r} is not {COUNT}")
    if number > _MOST:
        raise typer.BadParameter(f"{text[:20]!r} is too large: it can be {_MOST:,} at most")
    return number


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number of seconds") from None


def time_limit(seconds: float) -> float:
    """Return the value of --timeout. Raises ConfigError if no process can be given that long."""
    from ckpt_surgery.survey.target import TargetError, checked_timeout

    try:
        return checked_timeout(seconds)
    except TargetError as error:
        raise ConfigError(f"--timeout {error}") from None


Select: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="CODES", help="Only these rules: codes or prefixes of codes, comma-separated (repeatable)."),
]
Ignore: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="CODES", help="Leave out these rules, given as in --select.")
]
IncludeUnsupported: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--include-unsupported/--no-include-unsupported",
        help="Also check models without supports_gradient_checkpointing = True.",
    ),
]
NoCache: TypeAlias = Annotated[bool, typer.Option("--no-cache", rich_help_panel=WORK, help="Ignore the cache.")]
Jobs: TypeAlias = Annotated[
    int | None,
    typer.Option(
        parser=count, metavar="N", rich_help_panel=WORK, help="Number of worker processes (default: one per core)."
    ),
]
Output: TypeAlias = Annotated[
    Path | None,
    typer.Option(readable=False, metavar="FILE", rich_help_panel=REPORT, help="Write the report to this file."),
]
ExitZero: TypeAlias = Annotated[
    bool, typer.Option("--exit-zero", rich_help_panel=REPORT, help="Exit with 0 even if faults are found.")
]
Timeout: TypeAlias = Annotated[
    float,
    typer.Option(parser=_seconds, metavar="SECONDS", rich_help_panel=WORK, help=TIMEOUT_HELP, show_default=False),
]


class AnalysisOptions(TypedDict):
    """The keyword arguments that the functions `check` and `apply` share."""

    select: tuple[str, ...]
    ignore: tuple[str, ...]
    include_unsupported: bool
    jobs: int | None
    cache: bool
    exclude: tuple[str, ...]
    per_file_ignores: Mapping[str, tuple[str, ...]]


def analysis_options(
    config: Config,
    select: list[str] | None,
    ignore: list[str] | None,
    jobs: int | None,
    include_unsupported: bool | None,
    no_cache: bool,
) -> AnalysisOptions:
    """Merge the command line with `config`; the command line wins.

    --select also overrides the configuration's `ignore`: whoever names a rule wants to see it.

    Raises:
        ConfigError: A code that no rule has, or options that leave no rule.
    """
    from ckpt_surgery.codemods import RULES

    codes = [rule.code for rule in RULES]
    file = str(config.path)
    selecting = "--select" if select else f"{file}: select"
    selected = expand_codes(select or config.select, codes, selecting)
    given, ignoring = (ignore or (), "--ignore") if select or ignore else (config.ignore, f"{file}: ignore")
    ignored = expand_codes(given, codes, ignoring)
    if not set(selected or codes) - set(ignored):
        chosen = f"all that {selecting} chooses" if selected else "all rules"
        raise ConfigError(f"{ignoring} leaves no rule to check, because it takes {chosen}: ignore fewer")
    return {
        "select": selected,
        "ignore": ignored,
        "include_unsupported": config.include_unsupported if include_unsupported is None else include_unsupported,
        "jobs": jobs or config.jobs,
        "cache": not no_cache,
        "exclude": config.exclude,
        "per_file_ignores": {
            pattern: expand_codes(ignores, codes, f"{file}: per-file-ignores")
            for pattern, ignores in config.per_file_ignores.items()
        },
    }
