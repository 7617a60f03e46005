"""Argument lists as the tree's formatter would write them: on one line, on a line of their own, or one a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise

import libcst as cst

from ckpt_surgery.codemods.edits.targeted import code_of, columns
from ckpt_surgery.codemods.repair import NewArgument

_NO_SPACE = cst.SimpleWhitespace("")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call stands: what shares its first line, in columns, and how long a line may be."""

    margin: int
    """The indentation of the block that its statement is in, in columns."""
    indent: str
    """What the call's first line is indented by beyond that."""
    step: str
    """The indentation of one level of the file."""
    before: int
    """Columns on the line before the call."""
    after: int
    """Columns on its last line behind it."""
    width: int
    """The longest line allowed."""

    @property
    def inner(self) -> str:
        """The indentation of the call's arguments on lines of their own."""
        return self.indent + self.step


@dataclass(frozen=True, slots=True)
class _Item:
    """One argument without its comma, the comment behind it, those above it and, for the last one, those below it."""

    argument: cst.Arg
    comment: str = ""
    above: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)

    @property
    def code(self) -> str:
        return code_of(self.argument)


def laid_out(call: cst.Call, arguments: Sequence[NewArgument] | None, place: Place) -> cst.Call:
    """A call with its new `arguments` (None: with its own), laid out anew.

    Comments stay with their arguments. A list that was one argument a line (a trailing comma says so)
    stays that; otherwise the shortest of the three layouts that fits is taken.
    """
    items = _items(call)
    if arguments is not None:
        items = [_chosen(argument, items) for argument in arguments]
    room = place.width - place.margin - columns(place.inner)
    items = [_joined(item, room) for item in items]
    head = len(code_of(call.func).rpartition("\n")[2])
    joined = ", ".join(item.code for item in items)
    commented = any(item.comment or item.above or item.below for item in items)
    if not _is_exploded(call) and not commented and "\n" not in joined:
        if place.before + head + len(joined) + 2 + place.after <= place.width:
            return _with_arguments(call, _NO_SPACE, items, [cst.SimpleWhitespace(" ")] * len(items), last=_NO_SPACE)
        if len(joined) <= room:
            inner, outer = _line(place.inner), _line(place.indent)
            return _with_arguments(call, inner, items, [cst.SimpleWhitespace(" ")] * len(items), last=outer)
    return _one_a_line(call, items, place.indent, place.inner)


def _one_a_line(call: cst.Call, items: Sequence[_Item], indent: str, inner: str) -> cst.Call:
    first = _line(inner, inner, comments=items[0].above if items else ())
    gaps = [_line(inner, inner, left.comment, right.above) for left, right in pairwise(items)]
    gaps += [_line(indent, inner, last.comment, last.below) for last in items[-1:]]
    return _with_arguments(call, first, items, gaps, last=gaps[-1] if any(map(_is_bare_generator, items)) else None)


def _with_arguments(
    call: cst.Call,
    before: cst.BaseParenthesizableWhitespace,
    items: Sequence[_Item],
    gaps: Sequence[cst.BaseParenthesizableWhitespace],
    last: cst.BaseParenthesizableWhitespace | None,
) -> cst.Call:
    """The call with white space before its arguments and behind each comma; no last comma if something takes its
    place."""
    commas = [cst.Comma(_NO_SPACE, gap) for gap in gaps]
    arguments = [item.argument.with_changes(comma=comma) for item, comma in zip(items, commas, strict=True)]
    if last is not None and arguments:
        arguments[-1] = items[-1].argument.with_changes(whitespace_after_arg=last)
    return call.with_changes(whitespace_before_args=before, args=arguments)


def _line(
    indent: str, inner: str = "", comment: str = "", comments: Sequence[str] = ()
) -> cst.ParenthesizedWhitespace:
    """The end of a line with its comment, lines of comments indented by `inner`, and the next line's indentation."""
    behind = cst.TrailingWhitespace(cst.SimpleWhitespace("  "), cst.Comment(comment)) if comment else None
    lines = [cst.EmptyLine(whitespace=cst.SimpleWhitespace(inner), comment=cst.Comment(text)) for text in comments]
    return cst.ParenthesizedWhitespace(
        behind or cst.TrailingWhitespace(), empty_lines=lines, indent=True, last_line=cst.SimpleWhitespace(indent)
    )


def _chosen(new: NewArgument, items: Sequence[_Item]) -> _Item:
    if new.source is None:
        argument = cst.Arg(cst.parse_expression(new.text))
        old = _Item(argument, f"# {new.comment}" if new.comment else "")
    else:
        old = items[new.source]
    value = old.argument.value
    if _is_bare_generator(old):
        value = _in_parentheses(value)
        old = replace(old, argument=old.argument.with_changes(value=value))
    if new.keyword in ("*", "**") or (old.argument.keyword.value if old.argument.keyword else None) == new.keyword:
        return old
    if new.keyword is None:
        comments = _comments_of(old.argument.equal)
        argument = old.argument.with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)
        return replace(old, argument=argument, above=[*old.above, *comments])
    if isinstance(value, cst.NamedExpr) and not value.lpar:  # as a keyword it needs them
        value = _in_parentheses(value)
    equal = old.argument.equal if _comments_of(old.argument.equal) else cst.AssignEqual(_NO_SPACE, _NO_SPACE)
    argument = old.argument.with_changes(keyword=cst.Name(new.keyword), equal=equal, value=value)
    return replace(old, argument=argument)


def _is_bare_generator(item: _Item) -> bool:
    """Whether it is a generator without parentheses of its own: it stands alone, and no comma may follow."""
    return isinstance(item.argument.value, cst.GeneratorExp) and not item.argument.value.lpar


def _in_parentheses(value: cst.BaseExpression) -> cst.BaseExpression:
    return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _joined(item: _Item, room: int) -> _Item:
    """An argument whose parenthesised value stood on a line of its own, joined where it fits now."""
    value = item.argument.value
    if len(value.lpar) != 1 or "\n" not in code_of(value.lpar[0]):
        return item
    inner = value.with_changes(
        lpar=[value.lpar[0].with_changes(whitespace_after=_NO_SPACE)],
        rpar=[value.rpar[0].with_changes(whitespace_before=_NO_SPACE)],
    )
    joined = item.argument.with_changes(value=inner)
    lost = chain(_comments(value.lpar[0].whitespace_after), _comments(value.rpar[0].whitespace_before))
    code = code_of(joined)
    if "\n" in code or any(lost) or len(code) + 1 > room:
        return item
    return replace(item, argument=joined)


def _is_exploded(call: cst.Call) -> bool:
    """Whether a trailing comma on a list of several lines asks for one argument a line."""
    last = call.args[-1].comma if call.args else None
    return isinstance(last, cst.Comma) and "\n" in code_of(last.whitespace_after)


def _items(call: cst.Call) -> list[_Item]:
    items: list[_Item] = []
    above = list(_comments(call.whitespace_before_args))
    for argument in call.args:
        spaces = [argument.whitespace_after_arg]
        if isinstance(argument.comma, cst.Comma):
            spaces += [argument.comma.whitespace_before, argument.comma.whitespace_after]
        comment, below = "", list[str]()
        for space in spaces:
            if isinstance(space, cst.ParenthesizedWhitespace):
                first, *more = _comments(space) if space.first_line.comment else ["", *_comments(space)]
                below += [first, *more] if comment and first else more
                comment = comment or first
        bare = argument.with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=_NO_SPACE)
        items.append(_Item(bare, comment, above))
        above = below
    if above and items:
        items[-1] = replace(items[-1], below=above)
    return items


def _comments(space: cst.BaseParenthesizableWhitespace) -> list[str]:
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return []
    comments = [space.first_line.comment, *(line.comment for line in space.empty_lines)]
    return [comment.value for comment in comments if comment]


def _comments_of(equal: cst.AssignEqual | cst.MaybeSentinel) -> list[str]:
    if not isinstance(equal, cst.AssignEqual):
        return []
    return [*_comments(equal.whitespace_before), *_comments(equal.whitespace_after)]
