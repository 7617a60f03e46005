"""The files that the verdict on a job depends on beside the installed packages, told apart by their SHA-256."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path

from ckpt_surgery.survey.targets import SurveyTarget

_LIBRARIES = {
    Path(__file__).resolve().parents[1],
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")),
}
"""The folders of this package and of the standard library."""


def given_files(job: SurveyTarget) -> dict[str, str]:
    """The digests of what a job names: its configuration, and the code and the json files beside remote code."""
    if job.kind == "config":
        return digests([job.source])
    if job.kind == "remote":
        folder = Path(job.source.partition("::")[0])
        return digests(str(path) for path in folder.rglob("*") if path.suffix in (".json", ".py"))
    return {}


def imported_files(job: SurveyTarget) -> dict[str, str]:
    """The digests of what a factory's module, and its imports, were read from: called where it was imported.

    Installed packages are left out, but for the factory's own module. Empty where that is not known.
    """
    if job.kind != "factory":
        return {}
    own = _file_of(job.argument.partition(":")[0])
    files = [file for file in map(_file_of, list(sys.modules)) if file and not _installed(Path(file))]
    return digests([own, *files]) if own else {}


def unchanged(job: SurveyTarget, known: Mapping[str, str]) -> bool:
    """Whether the files are as when `known` was made of them. A factory of which no file is known is not."""
    if job.kind == "factory":
        return bool(known) and digests(known) == dict(known)
    return given_files(job) == dict(known)


def digests(files: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of each file by its path; empty where it cannot be read."""
    return {file: _digest(Path(file)) for file in sorted(set(files))}


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _file_of(module: str) -> str:
    # by its dictionary: some modules import whatever they are asked for
    file = getattr(sys.modules.get(module), "__dict__", {}).get("__file__")
    return str(Path(file).resolve()) if isinstance(file, str) else ""


def _installed(file: Path) -> bool:
    return any(place in _LIBRARIES or place.name in ("site-packages", "dist-packages") for place in file.parents)
