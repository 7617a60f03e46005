"""Bytes, ranks and names as people read them, the same in every message and report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: int) -> str:
    """A number of bytes with its unit, such as 1.5 KiB or 200 MiB."""
    unit, divisor = size_unit(count)
    return f"{count} B" if unit == "B" else f"{count / divisor:.{1 if abs(count) < 100 * divisor else 0}f} {unit}"


def size_unit(largest: float) -> tuple[str, int]:
    """The unit in which `largest` bytes are a number below 1024, and its size in bytes."""
    power = 0
    while abs(largest) >= 1024 ** (power + 1) and power < len(_UNITS) - 1:
        power += 1
    return _UNITS[power], 1024**power


def ranks_in_words(ranks: Sequence[int], of: int) -> str:
    """These ranks of a group of so many: rank 1, ranks 0 and 2, or every rank."""
    if len(ranks) == of:
        return "every rank"
    return f"rank{'s' if len(ranks) > 1 else ''} {listed([str(rank) for rank in ranks])}"


def listed(names: Sequence[str]) -> str:
    """The names as a clause: `a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def some(names: Iterable[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    found = list(names)
    more = len(found) - most
    return ", ".join(found[:most]) + (f" and {more} more" if more > 0 else "")
