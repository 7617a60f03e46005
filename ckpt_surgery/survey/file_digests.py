"""Digest the files that the verdict on a target depends on besides the installed packages, with SHA-256."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from ckpt_surgery.survey.target import SurveyTarget, TargetKind

_LIBRARIES = {
    Path(__file__).resolve().parents[1],
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")),
}
"""The folders of this package and of the standard library."""
_PACKAGES = ("site-packages", "dist-packages")


def named_files(target: SurveyTarget) -> dict[str, str]:
    """Return the digests of the files that a target names: its configuration, or the code and JSON of its folder."""
    if target.kind is TargetKind.CONFIG:
        return digests([target.source])
    if target.kind is TargetKind.REMOTE:
        folder = Path(target.source.partition("::")[0])
        return digests(str(path) for path in folder.rglob("*") if path.suffix in (".json", ".py"))
    return {}


def imported_files(target: SurveyTarget) -> dict[str, str]:
    """Return the digests of the files that a factory's module and its imports were read from, in this process.

    Installed packages are left out, except the factory's own module. Empty if its file is not known.
    """
    if target.kind is not TargetKind.FACTORY:
        return {}
    own = _file_of(target.module)
    files = [
        file
        for file in map(_file_of, list(sys.modules))
        if file and not any(place in _LIBRARIES or place.name in _PACKAGES for place in Path(file).parents)
    ]
    return digests([own, *files]) if own else {}


def unchanged(target: SurveyTarget, before: Mapping[str, str]) -> bool:
    """Tell whether the files still have the digests `before`. False for a factory without a known file."""
    if target.kind is TargetKind.FACTORY:
        return bool(before) and digests(before) == dict(before)
    return named_files(target) == dict(before)


def digests(files: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of each file by its path; empty if it cannot be read."""
    read = dict.fromkeys(sorted(set(files)), "")
    for file in read:
        with suppress(OSError):
            read[file] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return read


def _file_of(module: str) -> str:
    # from its dictionary: some modules import whatever attribute they are asked for
    file = getattr(sys.modules.get(module), "__dict__", {}).get("__file__")
    return str(Path(file).resolve()) if isinstance(file, str) else ""
