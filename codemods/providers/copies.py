"""Read `# Copied from` comments, and the name of the modular file that a file is generated from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ckpt_surgery.codemods.facts.fact import FileFact
from ckpt_surgery.codemods.facts.file_syntax import FileSyntax
from ckpt_surgery.codemods.facts.syntax import Span, first_line_of, span_of, statements_below

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
    definitions = (node for node in statements_below(file.tree) if isinstance(node, ast.ClassDef | ast.FunctionDef))
    starts = {first_line_of(node): span_of(node)._replace(line=first_line_of(node)) for node in definitions}
    for line, text in enumerate(file.lines, 1):
        match = _COPIED.match(text) if "Copied from transformers." in text else None
        if match is None:
            continue
        below = line + 1
        while below <= len(file.lines) and file.lines[below - 1].lstrip().startswith("#"):
            below += 1
        if span := starts.get(below):
            yield CopiedFrom(line, match.group(1), match.group(2) or "", span)


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
