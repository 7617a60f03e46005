"""Read requirements on transformers: the releases that they name, and those that they surely rule out."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.specifiers import Specifier
    from packaging.version import Version


def named_releases(requirement: str) -> list[tuple[Specifier, Version]] | None:
    """Return the specifiers of a requirement, each with its release, `.*` left out; None if not understood."""
    # `verify` reads the rules in environments of others, which have what models need and no more.
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import InvalidVersion, Version

    try:
        return [(item, Version(item.version.removesuffix(".*"))) for item in Requirement(requirement).specifier]
    except (InvalidRequirement, InvalidVersion):
        return None


def only_since(release: str, requirements: Collection[str]) -> bool:
    """Tell whether all requirements that name releases rule out those before this one; False where none does."""
    named = [*_named(release, requirements)]
    return bool(named) and all(
        any(operator in (">=", ">", "==", "~=") and order >= 0 for operator, order in items) for items in named
    )


def only_before(release: str, requirements: Collection[str]) -> bool:
    """Tell whether all requirements that name releases rule out this one and later ones; False where none does."""
    named = [*_named(release, requirements)]
    return bool(named) and all(
        any((operator in ("==", "<=") and order < 0) or (operator == "<" and order <= 0) for operator, order in items)
        for items in named
    )


def _named(release: str, requirements: Collection[str]) -> Iterator[list[tuple[str, int]]]:
    """Yield the operators of each requirement that names releases, with the order of theirs and this one.

    `==4.46.*` is taken for `>=4.46`, which rules out less, and an address for a requirement that rules out nothing.
    """
    from packaging.version import Version

    first = Version(release)
    for requirement in requirements:
        named = named_releases(requirement)
        items = [
            (">=" if item.version.endswith(".*") else item.operator, (version > first) - (version < first))
            for item, version in named or ()
            if item.operator != "!="
        ]
        if items or (named is not None and "@" in requirement):
            yield items
