"""Read requirements on transformers: which releases they surely rule out, and whether they admit very old ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.specifiers import Specifier
    from packaging.version import Version

FIRST_WITH_LAYERS = "4.52"
"""The first release with the layer class."""
_LOWER_BOUNDS, _UPPER_BOUNDS = frozenset({">=", ">", "==", "===", "~="}), frozenset({"<", "<="})


def _specifiers(requirement: str) -> list[tuple[Specifier, Version]] | None:
    """Return the specifiers of a requirement, each with its release without `.*`; None if it cannot be parsed."""
    # Imported here because `verify` imports the rules in environments that may lack `packaging`.
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import InvalidVersion, Version

    try:
        return [(item, Version(item.version.removesuffix(".*"))) for item in Requirement(requirement).specifier]
    except (InvalidRequirement, InvalidVersion):
        return None


def only_since(release: str, requirements: Collection[str]) -> bool:
    """Tell whether every requirement that names a release rules out those before this one; False if none names any."""
    compared = [*_compared(release, requirements)]
    return bool(compared) and all(
        any(operator in (">=", ">", "==", "~=") and order >= 0 for operator, order in items) for items in compared
    )


def only_before(release: str, requirements: Collection[str]) -> bool:
    """Tell whether every requirement that names a release rules out this one and later; False if none names any."""
    compared = [*_compared(release, requirements)]
    return bool(compared) and all(
        any((operator in ("==", "<=") and order < 0) or (operator == "<" and order <= 0) for operator, order in items)
        for items in compared
    )


def _compared(release: str, requirements: Collection[str]) -> Iterator[list[tuple[str, int]]]:
    """Yield each requirement as its operators, each with 1, 0 or -1 as the release it names is later, this or earlier.

    Requirements that name no release are left out. `==4.46.*` counts as `>=4.46`, which rules out less, and a URL as a
    requirement that rules out nothing.
    """
    from packaging.version import Version

    first = Version(release)
    for requirement in requirements:
        named = _specifiers(requirement)
        items = [
            (">=" if item.version.endswith(".*") else item.operator, (version > first) - (version < first))
            for item, version in named or ()
            if item.operator != "!="
        ]
        if items or (named is not None and "@" in requirement):
            yield items


def admits_old_releases(requirement: str) -> bool:
    """Tell whether the lower or the upper bound of a requirement is before the first release with the layer class.

    Without a lower bound the newest release gets installed, so a missing one proves nothing.
    """
    from packaging.version import Version

    first = Version(FIRST_WITH_LAYERS)
    bounds = [(item.operator, Version(version.base_version)) for item, version in _specifiers(requirement) or ()]
    lowest = max((version for operator, version in bounds if operator in _LOWER_BOUNDS), default=first)
    upper = [(version, operator != "<") for operator, version in bounds if operator in _UPPER_BOUNDS]
    return lowest < first or min(upper, default=(first, True)) < (first, True)
