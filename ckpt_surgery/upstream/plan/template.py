"""The pull request template of a checkout: where our part goes into it, and its boxes unticked.

It is read line by line as GitHub reads its blocks. Nothing else in it is changed but the line endings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

_Kind = Literal["text", "comment", "inert"]

_HEADING = re.compile(r" {0,3}#{1,6}(\s|$)")
_UNDERLINE = re.compile(r" {0,3}(=+|-{2,})\s*$")
_UNDERLINED = re.compile(r" {0,3}[^\s#>*+=|-]")
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_COMMENT = re.compile(r" {0,3}<!--")
_TICKED = re.compile(r"^([ \t>]*(?:(?:[-*+]|\d+[.)])[ \t]+)+)\[[xX]\](?![(\[:])", re.MULTILINE)


def opened(template: str) -> tuple[str, str]:
    """The template before the place for our part, and after it.

    The place is below the first heading and the comment that belongs to it: one that stands right below the heading
    and ends. A comment after that belongs to what follows it. Without a heading the place is at the top.
    """
    text = _TICKED.sub(r"\1[ ]", template.replace("\r\n", "\n").replace("\r", "\n"))
    lines = text.split("\n")
    kinds = _kinds(lines)
    at = _after_heading(lines, kinds)
    below = next((number for number in range(at, len(lines)) if lines[number].strip()), at)
    while below < len(lines) and kinds[below] == "comment":
        below += 1
        at = below
    return "\n".join(lines[:at]).strip("\n"), "\n".join(lines[at:]).strip("\n")


def _after_heading(lines: Sequence[str], kinds: Sequence[_Kind]) -> int:
    """The number of the line below the first heading; 0 where there is none."""
    for at, (line, kind) in enumerate(zip(lines, kinds, strict=True)):
        if kind != "text":
            continue
        if _HEADING.match(line):
            return at + 1
        if at and kinds[at - 1] == "text" and _UNDERLINE.match(line) and _UNDERLINED.match(lines[at - 1]):
            return at + 1
    return 0


def _kinds(lines: Sequence[str]) -> list[_Kind]:
    """Of each line: whether it is in a comment, or inert.

    Inert is code, a comment that never ends, and one with text behind its end.
    """
    kinds: list[_Kind] = []
    while len(kinds) < len(lines):
        at = len(kinds)
        if _COMMENT.match(lines[at]):
            end = next((number for number in range(at, len(lines)) if "-->" in lines[number]), None)
            last = len(lines) - 1 if end is None else end
            whole = end is not None and lines[end].rstrip().endswith("-->")
            kinds += ["comment" if whole else "inert"] * (last + 1 - at)
        elif fence := _FENCE.match(lines[at]):
            closing = re.compile(rf" {{0,3}}{re.escape(fence[1])}{re.escape(fence[1][0])}*\s*$")
            last = next((n for n in range(at + 1, len(lines)) if closing.match(lines[n])), len(lines) - 1)
            kinds += ["inert"] * (last + 1 - at)
        else:
            kinds.append("text")
    return kinds
