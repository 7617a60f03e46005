"""What is installed here: the packages that a verdict depends on. Nothing is imported to find out."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("ckpt-surgery", "torch", "transformers")
"""The distributions whose versions a report names."""


def installed_versions() -> dict[str, str]:
    """The versions of `PACKAGES`, by distribution name; one that is not installed is left out."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
