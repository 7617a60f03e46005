"""The edit that takes an inline branch away: the else branch moves out, comments and needed guards stay."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator

from codemods.facts import InlineBranch
from codemods.finding import Edit
from codemods.layout import relaid
from codemods.rule import Context
from codemods.source_text import SourceText
from codemods.tree_index import Ref

_STEP = "    "
_ELSE = re.compile(r"^[ \t]*else[ \t]*:", re.M)


def unwrapped(context: Context, owner: Ref, inline: InlineBranch) -> Edit:
    """Replace the whole `if` by its else branch."""
    source = context.source(owner.path)
    start, end = source.range(inline.span)
    indent = source.indent(start)
    first, _ = source.range(inline.orelse[0])
    body_start = _line_below_else(source, inline)
    kept = _guard(source, inline) if inline.guard and inline.guard_needed else ""
    body = source.text[body_start:end]
    comments = list(_lost_comments(source, inline, body))
    if inline.is_elif:
        # The branch's own else becomes the else of what stands before it.
        head = f"else:{source.newline}" + "".join(f"{indent}{_STEP}{one}{source.newline}" for one in comments)
        return Edit(owner.path, start, end, head + body)
    inner = source.indent(first)
    statements = _dedented(source, inline, body_start, end, len(inner) - len(indent))
    text = relaid(statements, indent, context.width, source.newline)
    lines = [f"{indent}{comment}" for comment in comments]
    joined = source.newline.join([*lines, text])
    return Edit(owner.path, start, end, kept + (joined if kept else joined.removeprefix(indent)))


def _line_below_else(source: SourceText, inline: InlineBranch) -> int:
    """The start of the else branch's text: comments above its first statement belong to it."""
    return source.text.index("\n", _else(source, inline)) + 1


def _else(source: SourceText, inline: InlineBranch) -> int:
    """The offset of the line that says `else:`."""
    found = _ELSE.search(source.text, source.range(inline.body[-1])[1])
    if found is None:
        raise ValueError(f"line {inline.span.line}: the branch has no else line")
    return found.end()


def _guard(source: SourceText, inline: InlineBranch) -> str:
    """`if <test>:` with the guard statements alone, up to the end of their last line."""
    start, _ = source.range(inline.span)
    source.indent(start)
    head = source.text[start : source.range(inline.body[0])[0]]
    parts: list[str] = []
    for span, kind in zip(inline.body, inline.body_kinds, strict=True):
        if kind == "guard":
            low, high = source.range(span)
            parts.append(source.text[source.line_start(low) : source.line_end(high)])
    head = head[: head.rindex(":") + 1] if "#" not in head else head.rstrip()
    return head + source.newline + source.newline.join(parts) + source.newline + source.newline


def _dedented(source: SourceText, inline: InlineBranch, start: int, end: int, step: int) -> str:
    """The text of the else branch, `step` columns to the left; lines inside strings stay."""
    text = source.text[start:end]
    inside = _string_lines(text, step)
    out: list[str] = []
    for number, line in enumerate(text.split("\n")):
        strip = number not in inside and line[:step].isspace()
        out.append(line[step:] if strip else line)
    return "\n".join(out)


def _string_lines(text: str, step: int) -> set[int]:
    """Numbers (from 0) of lines that begin inside a string: moving them would change its value."""
    inside: set[int] = set()
    wrapped = "if x:\n" + text + "\n"
    try:
        for token in tokenize.generate_tokens(io.StringIO(wrapped).readline):
            if token.type == tokenize.STRING and token.start[0] != token.end[0]:
                inside.update(range(token.start[0] - 1, token.end[0] - 1))
    except (tokenize.TokenError, IndentationError):
        return set()
    return inside


def _lost_comments(source: SourceText, inline: InlineBranch, kept: str) -> Iterator[str]:
    """Comments of the checkpointing branch that the else branch does not repeat."""
    start, _ = source.range(inline.span)
    low = source.text.index("\n", start) + 1
    text = source.text[low : source.line_start(_else(source, inline))]
    wanted: list[str] = []
    lines = io.StringIO("if x:\n" + text + "\n").readline
    try:
        for token in tokenize.generate_tokens(lines):
            if token.type == tokenize.COMMENT and token.string not in kept:
                wanted.append(token.string)
    except (tokenize.TokenError, IndentationError):
        pass
    if inline.guard and inline.guard_needed:
        guards = "".join(
            source.of(s) for s, kind in zip(inline.body, inline.body_kinds, strict=True) if kind == "guard"
        )
        wanted = [comment for comment in wanted if comment not in guards]
    yield from dict.fromkeys(wanted)
