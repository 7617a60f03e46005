"""Reads the YAML that `accelerate config` writes: nested mappings of plain values. Anything else is refused.

A full YAML library is not among the dependencies. What this reader does not understand (anchors, tags, block texts,
values over several lines, duplicate keys) makes it refuse the whole file, so that no value is ever read wrongly. Lists
are passed over: none of the keys that the rules need holds one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

Value: TypeAlias = "str | Mapping[str, Value] | None"
"""A value's text without quotes, a mapping, or None for a list and for an empty value."""

_KEY = re.compile(r"([A-Za-z_][\w.-]*)\s*:(?:\s+(.*))?")
_REFUSED = (*"&*!|>%@`?,]}", "- ")
_DEEPEST = 8


class _Refused(Exception):
    """A line that is not of the subset."""


class _YamlLine(NamedTuple):
    indent: int
    text: str


def read_yaml(text: str) -> Mapping[str, Value] | None:
    """The mapping of a file, or None if any of its lines is not understood."""
    try:
        lines = [line for line in map(_line, text.split("\n")) if line.text]
        if lines and lines[0].text == "---":
            lines = lines[1:]
        mapping, end = _mapping(lines, 0, lines[0].indent if lines else 0, 0)
    except _Refused:
        return None
    return mapping if end == len(lines) else None


def _line(raw: str) -> _YamlLine:
    """A line without its comment and the blanks at its end."""
    raw = raw.removesuffix("\r")
    if not raw.isprintable():  # a tab among them
        raise _Refused
    text = raw.strip(" ")
    quote = ""
    for position, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and text[:position].endswith((" ", "[", ",")):
            quote = character
        elif character == "#" and (position == 0 or text[position - 1] == " "):
            text = text[:position].rstrip(" ")
            break
    return _YamlLine(len(raw) - len(raw.lstrip(" ")), text)


def _mapping(lines: list[_YamlLine], start: int, indent: int, depth: int) -> tuple[dict[str, Value], int]:
    """The mapping whose keys stand at this indent, and the line after it."""
    if depth > _DEEPEST:
        raise _Refused
    mapping: dict[str, Value] = {}
    position = start
    while position < len(lines) and lines[position].indent >= indent:
        match = _KEY.fullmatch(lines[position].text)
        if match is None or lines[position].indent > indent or match[1] in mapping:
            raise _Refused
        position += 1
        value = match[2]
        if value:
            mapping[match[1]] = _scalar(value)
        elif position < len(lines) and lines[position].text.startswith("-") and lines[position].indent >= indent:
            mapping[match[1]] = None
            position = _after_list(lines, position)
        elif position < len(lines) and lines[position].indent > indent:
            mapping[match[1]], position = _mapping(lines, position, lines[position].indent, depth + 1)
        else:
            mapping[match[1]] = None
    return mapping, position


def _after_list(lines: list[_YamlLine], start: int) -> int:
    indent = lines[start].indent
    position = start
    while position < len(lines) and (
        lines[position].indent > indent or (lines[position].indent == indent and lines[position].text[0] == "-")
    ):
        position += 1
    return position


def _scalar(text: str) -> str | None:
    first, last = text[0], text[-1]
    if first in "\"'":
        inner = text[1:-1]
        if len(text) < 2 or last != first or first in inner or "\\" in inner:
            raise _Refused
        return inner
    if first in "[{":
        if (first, last) in (("[", "]"), ("{", "}")):
            return None
        raise _Refused
    if text.startswith(_REFUSED) or ": " in text or last == ":":
        raise _Refused
    return text
