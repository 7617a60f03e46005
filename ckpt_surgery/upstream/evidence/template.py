"""The pull request template of a checkout: where our part goes, and its boxes unticked.

It is read line by line, as GitHub reads its blocks. Only its boxes and line endings are changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto

_HEADING = re.compile(r" {0,3}#{1,6}(\s|$)")
_UNDERLINE = re.compile(r" {0,3}(=+|-{2,})\s*$")
_UNDERLINED = re.compile(r" {0,3}[^\s#>*+=|-]")
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_COMMENT = re.compile(r" {0,3}<!--")
_TICKED = re.compile(r"^([ \t>]*(?:(?:[-*+]|\d+[.)])[ \t]+)+)\[[xX]\](?![(\[:])", re.MULTILINE)


class _LineKind(Enum):
    TEXT = auto()
    COMMENT = auto()
    INERT = auto()
    """Code, a comment that never ends, or a comment with text behind its end."""


def split_template(template: str) -> tuple[str, str]:
    """The template before the place for our part, and after it, both with their boxes unticked.

    The place is below the first heading and the comment that belongs to it, which is one that directly follows the
    heading and ends. A later comment belongs to what follows it. Without a heading, the place is at the top.
    """
    text = _TICKED.sub(r"\1[ ]", template.replace("\r\n", "\n").replace("\r", "\n"))
    lines = text.split("\n")
    kinds = _line_kinds(lines)
    at = _after_heading(lines, kinds)
    below = next((number for number in range(at, len(lines)) if lines[number].strip()), at)
    while below < len(lines) and kinds[below] is _LineKind.COMMENT:
        below += 1
        at = below
    return "\n".join(lines[:at]).strip("\n"), "\n".join(lines[at:]).strip("\n")


def _after_heading(lines: Sequence[str], kinds: Sequence[_LineKind]) -> int:
    """The number of the line below the first heading; 0 if there is none."""
    for at, (line, kind) in enumerate(zip(lines, kinds, strict=True)):
        if kind is not _LineKind.TEXT:
            continue
        if _HEADING.match(line):
            return at + 1
        follows_text = at and kinds[at - 1] is _LineKind.TEXT
        if follows_text and _UNDERLINE.match(line) and _UNDERLINED.match(lines[at - 1]):
            return at + 1
    return 0


def _line_kinds(lines: Sequence[str]) -> list[_LineKind]:
    kinds: list[_LineKind] = []
    while len(kinds) < len(lines):
        at = len(kinds)
        if _COMMENT.match(lines[at]):
            end = next((number for number in range(at, len(lines)) if "-->" in lines[number]), None)
            last = len(lines) - 1 if end is None else end
            whole = end is not None and lines[end].rstrip().endswith("-->")
            kinds += [_LineKind.COMMENT if whole else _LineKind.INERT] * (last + 1 - at)
        elif fence := _FENCE.match(lines[at]):
            closing = re.compile(rf" {{0,3}}{re.escape(fence[1])}{re.escape(fence[1][0])}*\s*$")
            last = next((n for n in range(at + 1, len(lines)) if closing.match(lines[n])), len(lines) - 1)
            kinds += [_LineKind.INERT] * (last + 1 - at)
        else:
            kinds.append(_LineKind.TEXT)
    return kinds
