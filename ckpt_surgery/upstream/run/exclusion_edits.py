"""Edits that remove code from a test file with its comments and blank lines, and change nothing else."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Iterable

import libcst as cst

from ckpt_surgery.codemods.edits.rewrite import transformed
from ckpt_surgery.codemods.extract import extract
from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.facts.syntax import span_of
from ckpt_surgery.codemods.repairs.unused_imports import unused_imports
from ckpt_surgery.static.edits import Edit, apply_edits
from ckpt_surgery.upstream.layout import LINE_LENGTH

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\[`])")


def apply_removals(source: str, edits: Iterable[Edit]) -> str:
    """The source after these edits, without the imports that only the removed code used."""
    after = apply_edits(source, list(edits))
    unused = unused_imports("", extract(after), source, after, LINE_LENGTH)
    return transformed(cst.parse_module(after), [unused]).code if unused else after


def remove_method(text: SourceText, method: ast.FunctionDef, *, first: bool) -> Edit:
    """Remove a method, the comments directly above it, and the blank lines before it.

    For the `first` statement of a class, the blank lines after it go instead.
    """
    start = text.offset(min([method.lineno, *(decorator.lineno for decorator in method.decorator_list)]), 0)
    start = _comments_above(text, start)
    end = _end(text, method)
    if not first:
        return Edit("", _blank_above(text, start), end, "")
    while end < len(text.text) and not _line(text, end).strip():
        end = _next_line(text, end)
    return Edit("", start, end, "")


def remove_statement(text: SourceText, statement: ast.stmt) -> Edit:
    """Remove a statement, the comments directly above it, and the blank lines before it."""
    start = _blank_above(text, _comments_above(text, text.offset(statement.lineno, 0)))
    return Edit("", start, _end(text, statement), "")


def remove_list_elements(
    text: SourceText, container: ast.expr, elements: list[ast.expr], removed: list[ast.Constant]
) -> tuple[Edit, ...]:
    """Remove elements of a list, tuple or set that is on one line or has each element on lines of its own.

    Gives no edits for any other layout.
    """
    if container.lineno == container.end_lineno:
        start, end = text.range(span_of(container))
        kept = [text.of(span_of(element)) for element in elements if element not in removed]
        comma = "," if isinstance(container, ast.Tuple) and len(kept) == 1 else ""
        return (Edit("", start, end, text.text[start] + ", ".join(kept) + comma + text.text[end - 1]),)
    edits = []
    for element in removed:
        start, end = text.range(span_of(element))
        line_start, line_end = text.line_start(start), _next_line(text, end)
        if text.text[line_start:line_end].split("#")[0].strip().rstrip(",") != text.text[start:end]:
            return ()
        edits.append(Edit("", line_start, line_end, ""))
    return tuple(edits)


def replace_by_body(text: SourceText, condition: ast.If) -> Edit:
    """Replace a condition by its body."""
    start = text.offset(condition.lineno, 0)
    body_start = text.offset(condition.body[0].lineno, 0)
    end = _end(text, condition)
    indent = " " * (condition.body[0].col_offset - condition.col_offset)
    lines = text.text[body_start:end].splitlines(keepends=True)
    return Edit("", start, end, "".join(line.removeprefix(indent) for line in lines))


def remove_sentences(text: SourceText, statement: ast.stmt, names: Collection[str]) -> tuple[Edit, ...]:
    """Remove the sentences that mention these names from the comment directly above a statement."""
    end = text.offset(statement.lineno, 0)
    start = _comments_above(text, end)
    indent = text.indent(end)
    words = " ".join(line.strip().removeprefix("#").strip() for line in text.text[start:end].splitlines())
    sentences = _SENTENCE_END.split(words)
    mention = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b", re.IGNORECASE)
    kept = [sentence for sentence in sentences if not mention.search(sentence)]
    if len(kept) == len(sentences):
        return ()
    width = LINE_LENGTH - len(indent) - 2
    lines = textwrap.wrap(" ".join(kept), width, break_long_words=False, break_on_hyphens=False)
    return (Edit("", start, end, "".join(f"{indent}# {line}{text.newline}" for line in lines)),)


def _end(text: SourceText, statement: ast.stmt) -> int:
    """The offset of the line after a statement."""
    return _next_line(text, text.offset(statement.end_lineno or statement.lineno, 0))


def _comments_above(text: SourceText, start: int) -> int:
    """The offset at which the comment lines directly above a line begin, at the same indentation."""
    indent = text.indent(start)
    while start > 0:
        above = text.line_start(start - 1)
        if not _line(text, above).startswith(f"{indent}#"):
            break
        start = above
    return start


def _blank_above(text: SourceText, start: int) -> int:
    while start > 0 and not _line(text, text.line_start(start - 1)).strip():
        start = text.line_start(start - 1)
    return start


def _line(text: SourceText, start: int) -> str:
    return text.text[start : text.line_end(start)]


def _next_line(text: SourceText, offset: int) -> int:
    return min(text.line_end(offset) + len(text.newline), len(text.text))
