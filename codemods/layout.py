"""Argument lists and dedented statements as the tree's formatter would write them.

libcst reads one call or statement at a time; lines that need not change are left to the letter.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from codemods.arguments import Piece
from codemods.source_text import SourceText

_BLANK = cst.Module([])


@dataclass(frozen=True, slots=True)
class Place:
    """Where an expression stands: the indentation of its first line, and what shares lines with it."""

    indent: str
    before: int
    """Characters on the line before the expression."""
    after: int
    """Characters that follow its end on the line."""
    width: int
    """The longest line allowed."""
    newline: str = "\n"


@dataclass(slots=True)
class _Line:
    """One argument: its keyword or star, its value, the comment behind it and those above it."""

    prefix: str
    value: str
    comment: str
    above: list[str]

    @property
    def text(self) -> str:
        return self.prefix + self.value


def render_call(text: str, pieces: Sequence[Piece] | None, place: Place) -> str:
    """The source of a call with its arguments as `pieces` say (None: as they are), laid out anew.

    Comments stay with their arguments. A list that was one argument a line (a trailing comma says so)
    stays that; otherwise the shortest of the three layouts that fits is taken.

    Raises:
        libcst.ParserSyntaxError: `text` is not an expression.
    """
    node = cst.parse_expression(text.replace("\r\n", "\n"))
    if not isinstance(node, cst.Call):
        return text
    head = _BLANK.code_for_node(node.func)
    lines = _lines(node)
    exploded = _is_exploded(node)
    if pieces is not None:
        lines = [_line(piece, lines) for piece in pieces]
    return _lay_out(head, lines, place, exploded).replace("\n", place.newline)


def _line(piece: Piece, lines: list[_Line]) -> _Line:
    if piece.source is None:
        return _Line("", piece.text, f"# {piece.comment}", [])
    old = lines[piece.source]
    if piece.keyword == "**":
        return old
    return _Line(f"{piece.keyword}=" if piece.keyword else "", old.value, old.comment, old.above)


def _lay_out(head: str, lines: list[_Line], place: Place, exploded: bool) -> str:
    commented = any(line.comment or line.above for line in lines)
    joined = ", ".join(line.text for line in lines)
    if not exploded and not commented and "\n" not in joined:
        if place.before + len(head) + len(joined) + 2 + place.after <= place.width:
            return f"{head}({joined})"
        inner = f"{place.indent}    {joined}"
        if len(inner) <= place.width:
            return f"{head}(\n{inner}\n{place.indent})"
    out = [f"{head}("]
    for line in lines:
        out.extend(f"{place.indent}    {above}" for above in line.above)
        out.append(f"{place.indent}    {line.text}," + (f"  {line.comment}" if line.comment else ""))
    return "\n".join([*out, f"{place.indent})"])


def _is_exploded(node: cst.Call) -> bool:
    """Whether a trailing comma on a list of several lines asks for one argument a line."""
    if not node.args:
        return False
    last = node.args[-1].comma
    return isinstance(last, cst.Comma) and "\n" in _BLANK.code_for_node(last.whitespace_after)


def _lines(node: cst.Call) -> list[_Line]:
    lines: list[_Line] = []
    above = _comments(node.whitespace_before_args)[1]
    for argument in node.args:
        prefix = f"{argument.keyword.value}=" if argument.keyword else argument.star
        comma = argument.comma
        spaces = [argument.whitespace_after_arg]
        if isinstance(comma, cst.Comma):
            spaces += [comma.whitespace_before, comma.whitespace_after]
        comment = ""
        below: list[str] = []
        for space in spaces:
            own, more = _comments(space)
            comment = comment or own
            below += more
        lines.append(_Line(prefix, _BLANK.code_for_node(argument.value), comment, above))
        above = below
    if above and lines:
        lines[-1].above += above
    return lines


def _comments(space: cst.BaseParenthesizableWhitespace) -> tuple[str, list[str]]:
    """The comment on the rest of the line, and those on lines of their own below it."""
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return "", []
    own = space.first_line.comment.value if space.first_line.comment else ""
    return own, [line.comment.value for line in space.empty_lines if line.comment]


def relaid(text: str, indent: str, width: int, newline: str) -> str:
    """Statements that moved left: those that a formatter would now join are joined.

    `text` holds whole statements at indentation `indent` (not empty).
    """
    head = "if x:\n"
    source = SourceText(head + text)
    try:
        tree = ast.parse(head + text)
    except SyntaxError:
        return text
    edits: list[tuple[int, int, str]] = []
    for statement in _simple(tree.body):
        call = _value_call(statement)
        if call is None or statement.lineno == statement.end_lineno:
            continue
        start, end = source.offset(call.lineno, call.col_offset), source.offset(call.end_lineno or 0, call.end_col_offset or 0)
        place = Place(
            source.indent(start), start - source.line_start(start), source.line_end(end) - end, width, newline
        )
        new = render_call(source.text[start:end], None, place)
        edits.append((start, end, new))
    out = source.text
    for start, end, new in reversed(edits):
        out = out[:start] + new + out[end:]
    return out.removeprefix(head)


def _simple(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in statements:
        inner = [one for name in ("body", "orelse", "finalbody") for one in getattr(statement, name, ())]
        if inner:
            yield from _simple(inner)
        else:
            yield statement


def _value_call(statement: ast.stmt) -> ast.Call | None:
    """The call that a simple statement ends with: `x = f(...)`, `f(...)`, `return f(...)`, `x = f(...)[0]`."""
    value = getattr(statement, "value", None)
    while isinstance(value, ast.Subscript | ast.Attribute):
        value = value.value
    return value if isinstance(value, ast.Call) else None
