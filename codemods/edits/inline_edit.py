"""The edit that removes an inline branch: the else branch moves out, comments and needed guards stay."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator

from ckpt_surgery.codemods.edits.layout import relaid
from ckpt_surgery.codemods.facts.file_facts import InlineBranch
from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.finding import Edit
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.tree.source_tree import SourceTree

_STEP = "    "
_COMMENT_LINE = re.compile(r"^([ \t]*)#.*?(?=\r?$)", re.M)
_ELSE = re.compile(r"^[ \t]*else[ \t]*:", re.M)


def without_branch(tree: SourceTree, owner: ClassRef, inline: InlineBranch) -> Edit:
    """Replace the whole `if` by its else branch."""
    source = tree.source(owner.path)
    start, end = source.range(inline.span)
    indent = source.indent(start)
    first, _ = source.range(inline.orelse[0])
    colon = _else(source, inline)
    comments = list(_lost_comments(source, inline, colon, end))
    if source.text.find("\n", colon, first) < 0:
        # `else: statement` on one line
        statements = indent + source.text[first:end]
    else:
        end = _trailing_comments(source, end, len(indent))
        below = source.text.index("\n", colon) + 1
        if inline.is_elif:
            # The branch's own else becomes the else of what stands before it.
            kept = "".join(f"{indent}{_STEP}{comment}{source.newline}" for comment in comments)
            return Edit(owner.path, start, end, f"else:{source.newline}{kept}{source.text[below:end]}")
        statements = _dedented(source.text[below:end], len(source.indent(first)) - len(indent))
        statements = relaid(statements, indent, tree.width, source.newline)
    joined = source.newline.join([*(f"{indent}{comment}" for comment in comments), statements])
    if inline.guard and inline.guard_needed:
        return Edit(owner.path, start, end, _guard(source, inline) + joined)
    return Edit(owner.path, start, end, joined.removeprefix(indent))


def _trailing_comments(source: SourceText, end: int, outer: int) -> int:
    """The end of the branch with the comments that stand, at its own depth, below its last statement."""
    for match in _COMMENT_LINE.finditer(source.text, source.line_end(end)):
        if len(match.group(1)) <= outer or source.text[source.line_end(end) : match.start()].strip():
            break
        end = match.end()
    return end


def _else(source: SourceText, inline: InlineBranch) -> int:
    """The offset of the line that says `else:`."""
    match = _ELSE.search(source.text, source.range(inline.body[-1])[1])
    if match is None:
        raise ValueError(f"line {inline.span.line}: the branch has no else line")
    return match.end()


def _guard(source: SourceText, inline: InlineBranch) -> str:
    """`if <test>:` with the guard statements alone, up to the end of their last line."""
    start, _ = source.range(inline.span)
    head = source.text[start : source.range(inline.body[0])[0]]
    parts: list[str] = []
    for span, kind in zip(inline.body, inline.body_kinds, strict=True):
        if kind == "guard":
            low, high = source.range(span)
            parts.append(source.text[source.line_start(low) : source.line_end(high)])
    head = f"if {inline.test}:".replace("'", '"') if "#" in head else head[: head.rindex(":") + 1]
    return head + source.newline + source.newline.join(parts) + source.newline + source.newline


def _dedented(text: str, step: int) -> str:
    """The text `step` columns to the left; lines inside strings stay."""
    inside = _string_lines(text)
    lines = text.split("\n")
    return "\n".join(
        line[step:] if line.strip() and line[:step].isspace() and number not in inside else line
        for number, line in enumerate(lines)
    )


def _string_lines(text: str) -> set[int]:
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


def _lost_comments(source: SourceText, inline: InlineBranch, colon: int, end: int) -> Iterator[str]:
    """Comments from the `if` to its `else:` that the else branch does not repeat."""
    start, _ = source.range(inline.span)
    text = source.text[source.line_start(start) : source.line_end(colon)]
    kept = set(_comments(source.text[source.line_end(colon) : source.line_end(end)]))
    wanted = [comment for comment in _comments(text) if comment not in kept]
    if inline.guard and inline.guard_needed:
        parts = zip(inline.body, inline.body_kinds, strict=True)
        guards = "".join(source.of(span) for span, kind in parts if kind == "guard")
        wanted = [comment for comment in wanted if comment not in guards]
    yield from dict.fromkeys(wanted)


def _comments(text: str) -> Iterator[str]:
    """The comments of some whole lines."""
    try:
        for token in tokenize.generate_tokens(io.StringIO("if x:\n" + text + "\n").readline):
            if token.type == tokenize.COMMENT:
                yield token.string
    except (tokenize.TokenError, IndentationError):
        return
