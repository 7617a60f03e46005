"""Argument lists and dedented statements as the tree's formatter would write them.

libcst reads one call or statement at a time; lines that need not change are left to the letter.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.tree.arguments import NewArgument

if TYPE_CHECKING:
    import libcst as cst


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
    """One argument: its keyword or star, its value, the comment behind it, those above it and, for the last
    one, those below it."""

    prefix: str
    value: str
    comment: str = ""
    above: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return self.prefix + self.value


def render_call(text: str, arguments: Sequence[NewArgument] | None, place: Place) -> str:
    """The source of a call with its new `arguments` (None: with its own), laid out anew.

    Comments stay with their arguments. A list that was one argument a line (a trailing comma says so)
    stays that; otherwise the shortest of the three layouts that fits is taken.

    Raises:
        libcst.ParserSyntaxError: `text` is not an expression.
    """
    import libcst as cst  # only where there is something to rewrite: it takes longer to load than all else

    # In parentheses, because the call may stand in some and span lines.
    node = cst.parse_expression("(" + text.replace("\r\n", "\n") + ")")
    if not isinstance(node, cst.Call):
        return text
    blank = cst.Module([])
    head = blank.code_for_node(node.func)
    lines = _lines(node, blank)
    exploded = _is_exploded(node, blank)
    if arguments is not None:
        lines = [_line(argument, lines) for argument in arguments]
    return _lay_out(head, lines, place, exploded).replace("\n", place.newline)


def _line(new: NewArgument, lines: list[_Line]) -> _Line:
    if new.source is None:
        prefix = f"{new.keyword}=" if new.keyword else ""
        return _Line(prefix, new.text, f"# {new.comment}" if new.comment else "")
    old = lines[new.source]
    if new.keyword in ("*", "**"):
        return old
    return replace(old, prefix=f"{new.keyword}=" if new.keyword else "")


def _lay_out(head: str, lines: list[_Line], place: Place, exploded: bool) -> str:
    commented = any(line.comment or line.above or line.below for line in lines)
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
        text = _joined(line, len(place.indent) + 5, place.width)
        out.append(f"{place.indent}    {text}," + (f"  {line.comment}" if line.comment else ""))
    out.extend(f"{place.indent}    {below}" for line in lines for below in line.below)
    return "\n".join([*out, f"{place.indent})"])


def _joined(line: _Line, around: int, width: int) -> str:
    """An argument whose parenthesised value stood on a line of its own, joined where it fits now."""
    inner = line.value[1:-1].strip()
    if line.value.startswith("(\n") and line.value.endswith(")") and "\n" not in inner and inner[-1:] != ",":
        joined = f"{line.prefix}({inner})"
        if "#" not in inner and len(joined) + around <= width:
            return joined
    return line.text


def _is_exploded(node: cst.Call, blank: cst.Module) -> bool:
    """Whether a trailing comma on a list of several lines asks for one argument a line."""
    from libcst import Comma

    last = node.args[-1].comma if node.args else None
    return isinstance(last, Comma) and "\n" in blank.code_for_node(last.whitespace_after)


def _lines(node: cst.Call, blank: cst.Module) -> list[_Line]:
    from libcst import Comma, NamedExpr

    lines: list[_Line] = []
    own, above = _comments(node.whitespace_before_args)
    above = [own, *above] if own else above
    for argument in node.args:
        prefix = f"{argument.keyword.value}=" if argument.keyword else argument.star
        comma = argument.comma
        spaces = [argument.whitespace_after_arg]
        if isinstance(comma, Comma):
            spaces += [comma.whitespace_before, comma.whitespace_after]
        comment = ""
        below: list[str] = []
        for space in spaces:
            own, more = _comments(space)
            comment = comment or own
            below += more
        value = blank.code_for_node(argument.value)
        if isinstance(argument.value, NamedExpr) and not argument.value.lpar:
            value = f"({value})"  # as a keyword it needs them
        lines.append(_Line(prefix, value, comment, above))
        above = below
    if above and lines:
        lines[-1].below = above
    return lines


def _comments(space: cst.BaseParenthesizableWhitespace) -> tuple[str, list[str]]:
    """The comment on the rest of the line, and those on lines of their own below it."""
    from libcst import ParenthesizedWhitespace

    if not isinstance(space, ParenthesizedWhitespace):
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
        start, end = (
            source.offset(call.lineno, call.col_offset),
            source.offset(call.end_lineno or 0, call.end_col_offset or 0),
        )
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
        inner = [
            inner_statement
            for name in ("body", "orelse", "finalbody")
            for inner_statement in getattr(statement, name, ())
        ]
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
