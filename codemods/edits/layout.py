"""Argument lists as the tree's formatter would write them: on one line, on a line of their own, or one a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import libcst as cst

from ckpt_surgery.codemods.edits.paths import code_of
from ckpt_surgery.codemods.repair import NewArgument

_NO_SPACE = cst.SimpleWhitespace("")


class Place(NamedTuple):
    """Where a call stands: the indentation of its first line, beyond that of its block, and the columns it has there.

    `inner` is the indentation of its arguments on lines of their own, and `room` the columns that they have.
    """

    indent: str
    line: int
    inner: str
    room: int


@dataclass(frozen=True, slots=True)
class _Item:
    """One argument without its comma, the comment behind it and those on the lines above it."""

    argument: cst.Arg
    comment: str = ""
    above: list[str] = field(default_factory=list)

    @property
    def code(self) -> str:
        return code_of(self.argument)


def laid_out(call: cst.Call, arguments: Sequence[NewArgument] | None, place: Place) -> cst.Call:
    """A call with its new `arguments` (None: with its own), laid out anew.

    Comments stay with their arguments. A list that was one argument a line (a trailing comma says so)
    stays that; otherwise the shortest of the three layouts that fits is taken.
    """
    items, below = _items(call)
    if arguments is not None:
        items = [_chosen(argument, items) for argument in arguments]
    head = len(code_of(call.func).rpartition("\n")[2])
    joined = ", ".join(item.code for item in items)
    commented = below or any(item.comment or item.above for item in items)
    ending = call.args[-1].comma if call.args else None
    exploded = isinstance(ending, cst.Comma) and "\n" in code_of(ending.whitespace_after)
    may_share = not (exploded or commented or "\n" in joined)
    names = ", ".join("_" * len(items))
    if not items or (may_share and head + len(joined) + 2 <= place.line):
        layout = names
    elif may_share and len(joined) <= place.room:
        layout = f"\n{place.inner}{names}\n{place.indent}"
    else:
        # a generator without parentheses of its own stands alone, and no comma may follow it
        name = "_" if any(_is_bare(item.argument.value, cst.GeneratorExp) for item in items) else "_,"
        lines = [line for item in items for line in (*item.above, f"{name}  {item.comment}".rstrip())]
        layout = "".join(f"\n{place.inner}{line}" for line in [*lines, *below]) + f"\n{place.indent}"
    # the white space is read from the layout; the arguments stay the nodes that they are
    spaces = cst.ensure_type(cst.parse_expression(f"_({layout})"), cst.Call)
    laid = [
        item.argument.with_changes(comma=space.comma, whitespace_after_arg=space.whitespace_after_arg)
        for item, space in zip(items, spaces.args, strict=True)
    ]
    return call.with_changes(whitespace_before_args=spaces.whitespace_before_args, args=laid)


def _is_bare(value: cst.BaseExpression, *kinds: type[cst.BaseExpression]) -> bool:
    """Whether it is of these kinds, and has no parentheses of its own."""
    return isinstance(value, kinds) and not value.lpar


def _chosen(new: NewArgument, items: Sequence[_Item]) -> _Item:
    if new.source is None:
        old = _Item(cst.Arg(cst.parse_expression(new.text)), f"# {new.comment}" if new.comment else "")
    else:
        old = items[new.source]
    value, keyword, equal = old.argument.value, old.argument.keyword, old.argument.equal
    if _is_bare(value, cst.GeneratorExp, cst.NamedExpr):
        value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    lost: list[str] = []
    if new.keyword not in ("*", "**", keyword and keyword.value):
        spaces = [equal.whitespace_before, equal.whitespace_after] if isinstance(equal, cst.AssignEqual) else []
        lost = [comment for space in spaces for comment in _comments(space)]
        keyword = cst.Name(new.keyword) if new.keyword else None
        equal = cst.AssignEqual(_NO_SPACE, _NO_SPACE) if new.keyword else cst.MaybeSentinel.DEFAULT
    argument = old.argument.with_changes(value=value, keyword=keyword, equal=equal)
    return replace(old, argument=argument, above=[*old.above, *lost])


def _items(call: cst.Call) -> tuple[list[_Item], list[str]]:
    """The arguments of a call, and the comments below the last one."""
    items: list[_Item] = []
    above = _comments(call.whitespace_before_args)
    for argument in call.args:
        spaces = [argument.whitespace_after_arg]
        if isinstance(argument.comma, cst.Comma):
            spaces += [argument.comma.whitespace_before, argument.comma.whitespace_after]
        comment, below = "", list[str]()
        for space in spaces:
            comments = _comments(space)
            if not comment and isinstance(space, cst.ParenthesizedWhitespace) and space.first_line.comment:
                comment = comments.pop(0)
            below += comments
        bare = argument.with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=_NO_SPACE)
        items.append(_Item(bare, comment, above))
        above = below
    return items, above


def _comments(space: cst.BaseParenthesizableWhitespace) -> list[str]:
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return []
    comments = [space.first_line.comment, *(line.comment for line in space.empty_lines)]
    return [comment.value for comment in comments if comment]
