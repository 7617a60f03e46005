"""Check the packages that only the runtime half needs: whether they are installed, in a release that was tested.

If one is missing, too old, broken or newer than tested, one sentence says so. Only `load_runtime` imports them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ckpt_surgery.errors import MissingPackageError
from ckpt_surgery.text import error_line, listed

if TYPE_CHECKING:
    from packaging.version import Version

TESTED = {"torch": ("2.8", "2.15"), "transformers": ("4.52.4", "5.24.0")}
"""The oldest and the newest release that was tested. Older ones are refused, newer ones are logged."""
PYTHON = ("3.11", "3.13")
"""The same for Python; pip refuses older ones."""
RUNTIME_PACKAGES = tuple(TESTED)
_VERSION = re.compile(r"""^__version__\b[^=\n]*=\s*['"]([^'"]+)""", re.MULTILINE)


def supported_range() -> str:
    """Return the tested releases as one phrase: torch 2.8 to 2.15, ..."""
    return listed([f"{name} {oldest} to {newest}" for name, (oldest, newest) in {**TESTED, "Python": PYTHON}.items()])


def missing_package(wanted: str, package: str) -> MissingPackageError:
    """Return the error for `wanted` (a name, command or option) that needs a package which is not installed."""
    return MissingPackageError(
        f"{wanted} needs {package}, which is not installed: run `python -m pip install {package}`",
        name=package,
    )


def is_installed(package: str) -> bool:
    """Tell whether a package is installed. A folder without Python files, such as a clone's top, is not a package."""
    spec = _spec(package)
    return spec is not None and (spec.origin is not None or not spec.submodule_search_locations)


def installed_version(distribution: str) -> str | None:
    """Return the version in a distribution's metadata, else in its source; None if neither has it."""
    from importlib.metadata import version  # slow to import, and `--help` does not need it

    with suppress(Exception):  # not installed by pip, or its metadata cannot be read
        return version(distribution) or None
    # a clone on sys.path
    spec = _spec(distribution.replace("-", "_"))
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for name in ("version.py", "__init__.py"):
            file = Path(folder, name)
            if file.is_file() and (found := _VERSION.search(file.read_text(encoding="utf-8", errors="replace"))):
                return found[1]
    return None


def _spec(package: str) -> ModuleSpec | None:
    try:
        return find_spec(package)
    except ValueError:  # a stand-in in sys.modules without a spec
        return None


def need_runtime(wanted: str, packages: Sequence[str] = RUNTIME_PACKAGES) -> None:
    """Make sure that `packages` are installed, and that torch and transformers are not older than tested.

    The first call in a process logs which of them is newer than tested.

    Raises:
        MissingPackageError: a package is not installed, or too old.
    """
    if problem := runtime_problem(wanted, packages):
        raise problem
    _log_newer()


def load_runtime(wanted: str, packages: Sequence[str] = RUNTIME_PACKAGES) -> None:
    """Make sure of what `need_runtime` checks, and that the packages can be imported.

    Raises:
        MissingPackageError: a package is not installed, too old or cannot be imported, or torch lacks a name.
    """
    need_runtime(wanted, packages)
    for package in packages:
        try:
            import_module("ckpt_surgery.torch_names" if package == "torch" else package)
        except Exception as error:  # a broken installation fails in many ways
            version = installed_version(package) or "of an unknown version"
            raise MissingPackageError(
                f"{wanted} needs {package}, and {package} {version} does not work here: {error_line(error)}",
                name=package,
            ) from error


def runtime_problem(wanted: str, packages: Sequence[str]) -> MissingPackageError | None:
    """Return the error that `need_runtime` raises, if any."""
    for package in packages:
        if not is_installed(package):
            return missing_package(wanted, package)
    for package, (oldest, _) in TESTED.items():
        version = _parsed(installed_version(package))
        # suffixes do not count: vendors build 2.8.0a0+git from what became 2.8
        if version is not None and version.release < _release(oldest):
            return MissingPackageError(
                f"{wanted} needs {package} {oldest} or later, and {version} is installed: "
                f"run `python -m pip install '{package}>={oldest}'`",
                name=package,
            )
    return None


@cache
def _log_newer() -> None:
    """Log which packages are newer than the newest tested release; a patch release is not newer.

    It is a log because a warning would end a program that turns warnings into errors.
    """
    newer = [
        f"{package} {version} is newer than {newest}, the newest that was tested"
        for package, (_, newest) in TESTED.items()
        if (version := _parsed(installed_version(package))) is not None and version.release[:2] > _release(newest)[:2]
    ]
    if newer:
        logging.getLogger("ckpt_surgery").warning("ckpt_surgery: %s", "; ".join(newer))


def _parsed(version: str | None) -> Version | None:
    """Return a version that can be compared; None if it is unknown or does not follow PEP 440."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version or "")
    except InvalidVersion:
        return None


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
