"""Which releases of transformers the requirements that hold for a file surely rule out."""

from __future__ import annotations

from collections.abc import Collection, Iterator


def only_since(release: str, requirements: Collection[str]) -> bool:
    """Whether all requirements that name releases rule out those before this one; False where none does."""
    named = [*_named(release, requirements)]
    return bool(named) and all(
        any(operator in (">=", ">", "==", "~=") and order >= 0 for operator, order in items) for items in named
    )


def only_before(release: str, requirements: Collection[str]) -> bool:
    """Whether all requirements that name releases rule out this one and later ones; False where none does."""
    named = [*_named(release, requirements)]
    return bool(named) and all(
        any((operator in ("==", "<=") and order < 0) or (operator == "<" and order <= 0) for operator, order in items)
        for items in named
    )


def _named(release: str, requirements: Collection[str]) -> Iterator[list[tuple[str, int]]]:
    """The operators of each requirement that names releases, and whether theirs comes before, is, or comes after it.

    `==4.46.*` is taken for `>=4.46`, which rules out less, and an address for a requirement that rules out nothing.
    """
    # `verify` reads the rules in environments of others, which have what models need and no more.
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import InvalidVersion, Version

    first = Version(release)
    for requirement in requirements:
        try:
            specifiers = [item for item in Requirement(requirement).specifier if item.operator != "!="]
            versions = [Version(item.version.removesuffix(".*")) for item in specifiers]
        except (InvalidRequirement, InvalidVersion):
            continue
        items = [
            (">=" if item.version.endswith(".*") else item.operator, (version > first) - (version < first))
            for item, version in zip(specifiers, versions, strict=True)
        ]
        if items or "@" in requirement:
            yield items
