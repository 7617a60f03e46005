"""The packages that the runtime half needs and the static half does not: which releases were tested, and one sentence
where a package is missing, too old, or newer than that.

No package is imported to find out.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ckpt_surgery.errors import MissingPackageError
from ckpt_surgery.text import listed

if TYPE_CHECKING:
    from packaging.version import Version

TESTED = {"torch": ("2.8", "2.15"), "transformers": ("4.52.4", "5.24.0")}
"""The oldest and the newest release that was tested. Older ones are refused, newer ones are told."""
PYTHON = ("3.11", "3.13")
"""The same of Python; pip refuses older ones."""
RUNTIME_PACKAGES = tuple(TESTED)


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
    """Tell whether a package is installed."""
    try:
        return find_spec(package) is not None
    except ValueError:  # a stand-in in sys.modules without a spec
        return False


def installed_version(distribution: str) -> str | None:
    """Return the version in a distribution's metadata; None where there is none, as in a source tree on the path."""
    from importlib.metadata import PackageNotFoundError, version  # they take a while, and `--help` does without

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def need_runtime(wanted: str, packages: Sequence[str] = RUNTIME_PACKAGES) -> None:
    """Make sure that `packages` are installed, and torch and transformers in no release older than tested.

    The first time in a process, one line says which of them is newer than tested.

    Raises:
        MissingPackageError: a package is not installed, or too old.
    """
    if problem := runtime_problem(wanted, packages):
        raise problem
    _tell_newer()


def runtime_problem(wanted: str, packages: Sequence[str]) -> MissingPackageError | None:
    """Return the error that `need_runtime` raises, if any."""
    for package in packages:
        if not is_installed(package):
            return missing_package(wanted, package)
    for package, (oldest, _) in TESTED.items():
        version = _parsed(installed_version(package))
        # only the numbers count: vendors build 2.8.0a0+git from what became 2.8
        if version is not None and version.release < _release(oldest):
            return MissingPackageError(
                f"{wanted} needs {package} {oldest} or later, and {version} is installed: "
                f"run `python -m pip install '{package}>={oldest}'`",
                name=package,
            )
    return None


@cache
def _tell_newer() -> None:
    """Log which packages are of a later minor release than the newest that was tested; a patch release is none.

    A log, because a warning ends a program that turns warnings into errors.
    """
    newer = [
        f"{package} {version} is newer than {newest}, the newest that was tested"
        for package, (_, newest) in TESTED.items()
        if (version := _parsed(installed_version(package))) is not None and version.release[:2] > _release(newest)[:2]
    ]
    if newer:
        logging.getLogger("ckpt_surgery").warning("ckpt_surgery: %s", "; ".join(newer))


def _parsed(version: str | None) -> Version | None:
    """Return a version that can be compared; None for one that is not known or not of Python's form."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version or "")
    except InvalidVersion:
        return None


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
