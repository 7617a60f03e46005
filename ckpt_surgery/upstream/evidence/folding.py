"""Lists that fold when they grow long, as pieces of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckpt_surgery.text import bullets, code, folded, plural

LONG = 12
"""A list with more items than this is folded."""

_MOST_NAMES = 3


def folded_if_long(text: str, count: int, noun: str, nouns: str = "") -> str:
    """A piece of Markdown that shows `count` items, folded if these are many."""
    return folded(plural(count, noun, nouns), text) if count > LONG else text


def bullet_list(items: Sequence[str], noun: str) -> str:
    """A list of Markdown items, folded if it is long; empty if there are none."""
    return folded_if_long(bullets(items), len(items), noun)


def folded_names(names: Sequence[str], noun: str, nouns: str = "") -> str:
    """All names on one folded line; empty if there are none."""
    return folded(plural(len(names), noun, nouns), code_list(names)) if names else ""


def some_names(names: Sequence[str]) -> str:
    """The first few names as code, and how many more there are."""
    more = len(names) - _MOST_NAMES
    return code_list(names[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def code_list(names: Iterable[str]) -> str:
    """The names as code, separated by commas."""
    return ", ".join(map(code, names))
