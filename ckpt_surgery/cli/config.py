"""Read `[tool.ckpt_surgery]` in pyproject.toml, and the rule codes that it and the command line name.

Every mistake in them is a `ConfigError` of one line.
"""

from __future__ import annotations

import glob
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path

from ckpt_surgery.errors import CkptSurgeryError
from ckpt_surgery.static.options import COUNT, are_names, is_count

TABLE = "ckpt_surgery"
_CLOSE = 0.8  # all codes share their first four characters, so less than this is not similar


class ConfigError(CkptSurgeryError, ValueError):
    """A wrong option or configuration: one line that says what, where and what to do."""


class OutputFormat(StrEnum):
    """The formats of the report of `check`."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"
    HTML = "html"


@dataclass(frozen=True, slots=True)
class Config:
    """The values of the table. Relative patterns with a slash are anchored at the folder of `path`.

    The reference page of the keys is made from the strings below the fields.
    """

    path: Path | None = None
    """The file with the table; None if there is none."""
    select: tuple[str, ...] = ()
    """Only these rules: codes, or the start of codes. All rules if empty."""
    ignore: tuple[str, ...] = ()
    """Not these rules: codes, or the start of codes."""
    exclude: tuple[str, ...] = ()
    """Glob patterns of files and folders to skip."""
    include_unsupported: bool = False
    """Also check models without `supports_gradient_checkpointing = True`."""
    show_unknown: bool = False
    """Also show what could not be decided."""
    jobs: int | None = None
    """Worker processes."""
    output_format: OutputFormat = OutputFormat.TEXT
    """How `check` writes its report."""
    baseline: Path | None = None
    """The file of findings that `check` leaves out, relative to the pyproject.toml; written if it is not there."""
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Glob pattern of files to the codes of rules that are ignored in them."""

    @classmethod
    def load(cls, start: str | Path | None = None) -> Config:
        """Read the configuration for `start` (a file or folder; default: the working folder).

        It is the `[tool.ckpt_surgery]` table of the nearest pyproject.toml, going up, that has one. A folder that may
        not be searched is skipped.

        Raises:
            ConfigError: A pyproject.toml that cannot be read or is not valid TOML, an unknown key, or a wrong type; or
                no `start` was given and the working folder no longer exists.
        """
        try:
            place = Path(os.path.abspath(start or os.curdir))
        except FileNotFoundError:
            raise ConfigError("the working folder no longer exists: change to another") from None
        for folder in (place, *place.parents):
            file = folder / "pyproject.toml"
            # Path.is_file raises if the folder may not be searched
            table = _table(file) if os.path.isfile(file) else None
            if table is not None:
                break
        else:
            return cls()
        values: dict[str, object] = {}
        for key, value in table.items():
            if key not in _READERS:
                near = get_close_matches(key.replace("_", "-"), _READERS, n=1)
                hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(_READERS)}"
                raise ConfigError(f"{file}: [tool.{TABLE}] has no key {key!r}: {hint}")
            try:
                values[key.replace("-", "_")] = _READERS[key](value, file.parent)
            except TypeError as error:
                raise ConfigError(f"{file}: [tool.{TABLE}] {key} must be {error}, not {value!r}") from None
        return cls(path=file, **values)  # type: ignore[arg-type]  # each reader returns its field's type


def expand_codes(entries: Iterable[str], codes: Sequence[str], where: str) -> tuple[str, ...]:
    """Return those of `codes` that `entries` name, in the order of `codes`; a prefix names all that start with it.

    An entry may list several, with commas. `where` (`--select`, a file and key) is named in the error.

    Raises:
        ConfigError: A prefix that no code starts with, or entries that name nothing.
    """
    entries = list(entries)
    prefixes = [prefix.strip().upper() for entry in entries for prefix in entry.split(",") if prefix.strip()]
    if entries and not prefixes:
        raise ConfigError(f"{where} names no rule: give a code or the start of one, such as CKPT003 or CKPT0")
    for prefix in prefixes:
        if not any(code.startswith(prefix) for code in codes):
            near = get_close_matches(prefix, codes, n=1, cutoff=_CLOSE)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(f"{where}: no rule has the code {prefix}: {hint}`ckpt_surgery rule` lists them all")
    return tuple(code for code in codes if code.startswith(tuple(prefixes)))


def _table(file: Path) -> Mapping[str, object] | None:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # not TOML, or not UTF-8
        raise ConfigError(f"{file}: is not valid TOML: {' '.join(str(error).split())}") from None
    tool = document.get("tool")
    if not isinstance(tool, dict):
        return None
    if "ckpt-surgery" in tool:
        raise ConfigError(f"{file}: the table is named [tool.{TABLE}], not [tool.ckpt-surgery]: rename it")
    table = tool.get(TABLE)
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{file}: tool.{TABLE} must be a table: write [tool.{TABLE}]")
    return table


def _strings(value: object, _folder: Path) -> tuple[str, ...]:
    if not isinstance(value, list) or not are_names(value):
        raise TypeError("a list of strings")
    return tuple(value)


def _switch(value: object, _folder: Path) -> bool:
    if not isinstance(value, bool):
        raise TypeError("true or false")
    return value


def _jobs(value: object, _folder: Path) -> int:
    if not is_count(value):
        raise TypeError(COUNT)
    return value


def _format(value: object, _folder: Path) -> OutputFormat:
    if not isinstance(value, str) or value not in tuple(OutputFormat):
        raise TypeError(f"one of {', '.join(OutputFormat)}")
    return OutputFormat(value)


def _file(value: object, folder: Path) -> Path:
    if not isinstance(value, str) or not value:
        raise TypeError("a path")
    return folder / value


def _per_file(value: object, folder: Path) -> dict[str, tuple[str, ...]]:
    wanted = "a table of glob pattern to list of codes"
    if not isinstance(value, dict):
        raise TypeError(wanted)
    try:
        return {_anchored(pattern, folder): _strings(codes, folder) for pattern, codes in value.items()}
    except TypeError:
        raise TypeError(wanted) from None


def _anchored(pattern: str, folder: Path) -> str:
    if "/" not in pattern.rstrip("/") or os.path.isabs(pattern):
        return pattern
    return f"{glob.escape(folder.as_posix())}/{pattern}"


_READERS: dict[str, Callable[[object, Path], object]] = {
    "select": _strings,
    "ignore": _strings,
    "exclude": lambda value, folder: tuple(_anchored(pattern, folder) for pattern in _strings(value, folder)),
    "include-unsupported": _switch,
    "show-unknown": _switch,
    "jobs": _jobs,
    "output-format": _format,
    "baseline": _file,
    "per-file-ignores": _per_file,
}
