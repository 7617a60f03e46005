"""The packages that the runtime half needs and the static half does not: one sentence where they are missing."""

from __future__ import annotations

from importlib.util import find_spec

from ckpt_surgery.errors import MissingPackageError

RUNTIME_PACKAGES = ("torch", "transformers")


def missing_package(wanted: str, package: str) -> MissingPackageError:
    """The error for `wanted` (a name, command or option) that needs a package which is not installed."""
    return MissingPackageError(
        f"{wanted} needs {package}, which is not installed: run `python -m pip install {package}`",
        name=package,
    )


def is_installed(package: str) -> bool:
    """Whether a package is installed. It is not imported to find out."""
    try:
        return find_spec(package) is not None
    except ValueError:  # a stand-in in sys.modules without a spec
        return False


def need_runtime(wanted: str) -> None:
    """Make sure, without importing them, that torch and transformers are installed.

    Raises:
        MissingPackageError: one of them is not.
    """
    for package in RUNTIME_PACKAGES:
        if not is_installed(package):
            raise missing_package(wanted, package)
