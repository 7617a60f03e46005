"""Read `# Copied from` comments, and the name of the modular file that a file is generated from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ckpt_surgery.codemods.facts.fact import FileFact
from ckpt_surgery.codemods.facts.file_syntax import FileSyntax
from ckpt_surgery.codemods.facts.syntax import Span, first_line_of

_COPIED = re.compile(r"^[ \t]*#[ \t]*Copied from transformers\.(\S+)(?:[ \t]+with[ \t]+(.+?))?[ \t]*$")
_GENERATED = re.compile(r"automatically generated from (?:\S*/)?(modular_\w+\.py)")
_HEADER_LENGTH = 2000
"""The notice of a generated file is within its first characters."""


@dataclass(frozen=True, slots=True)
class CopiedFrom:
    """A `# Copied from a.b.C with X->Y` comment: its line, and the span of the definition below it."""

    line: int
    source: str
    replacements: str
    span: Span


def _comments(file: FileSyntax) -> Iterator[CopiedFrom]:
    starts = dict(_definitions(file.tree))
    for line, text in enumerate(file.lines, 1):
        match = _COPIED.match(text) if "Copied from transformers." in text else None
        if match is None:
            continue
        below = line + 1
        while below <= len(file.lines) and file.lines[below - 1].lstrip().startswith("#"):
            below += 1
        if span := starts.get(below):
            yield CopiedFrom(line, match.group(1), match.group(2) or "", span)


def _definitions(node: ast.AST) -> Iterator[tuple[int, Span]]:
    """Yield the first line (decorators included) and the span of every class, function and method."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.ClassDef | ast.FunctionDef):
            first = first_line_of(inner)
            yield first, Span(first, inner.col_offset, inner.end_lineno or inner.lineno, inner.end_col_offset or 0)
        if isinstance(inner, ast.ClassDef | ast.If):
            yield from _definitions(inner)


COPIES = FileFact[tuple[CopiedFrom, ...]](
    "copies", lambda file: tuple(_comments(file)), nothing=(), signs=("Copied from transformers.",)
)
GENERATED_FROM = FileFact(
    "generated_from",
    lambda file: "".join(_GENERATED.findall(file.source, 0, _HEADER_LENGTH)[:1]),
    nothing="",
    signs=("modular_",),
)
"""The modular file named in a generated file's header; empty if there is none."""
