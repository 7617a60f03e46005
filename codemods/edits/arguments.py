"""Rewrite a call's arguments, rename one occurrence of a name, and join the lines of calls that moved left.

Argument lists are laid out as a formatter would: on the call's line, on a line of their own, or one argument per line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import libcst as cst

from ckpt_surgery.codemods.edits import paths
from ckpt_surgery.codemods.repair import NewArgument, Occurrence

_NO_SPACE = cst.SimpleWhitespace("")
_MARK = cst.Name("_\N{MIDDLE DOT}_")
"""Replaces a call while the rest of its line is measured. No code has a name like it."""
_WITHOUT_EXPRESSIONS = (cst.Import, cst.ImportFrom, cst.Global, cst.Nonlocal, cst.MatchPattern)
_NAME_FIELDS: Mapping[type[cst.CSTNode], str] = {
    cst.Attribute: "attr",
    cst.Arg: "keyword",
    cst.Param: "name",
    cst.FunctionDef: "name",
    cst.ClassDef: "name",
}
"""Fields that hold a name which is not an expression."""


@dataclass
class RearrangeArguments(paths.ModuleTransformer):
    """Gives one call another argument list, laid out as a formatter would."""

    target: Occurrence
    arguments: Sequence[NewArgument]
    width: int = field(kw_only=True)

    def _changed(self, tree: cst.Module) -> cst.CSTNode:
        around, call = paths.occurrence_in(tree, self.target, cst.Call, "call of", self._is_called)
        place = Place.of(around, call, tree.default_indent, self.width)
        return paths.replaced(around, call, laid_out(call, self.arguments, place))

    def _is_called(self, _: paths.Path, call: cst.Call) -> bool:
        """Tell whether a call is of the target. For most, the last name is enough to tell, without generating code."""
        function, wanted = call.func, self.target.code
        if isinstance(function, cst.Name):
            return function.value == wanted
        if isinstance(function, cst.Attribute) and not wanted.endswith(function.attr.value):
            return False
        return paths.squeezed(function) == wanted


@dataclass
class RenameOccurrence(paths.ModuleTransformer):
    """Writes `new` for one occurrence of a name, `True` and `False` among them."""

    target: Occurrence
    new: str

    def _changed(self, tree: cst.Module) -> cst.CSTNode:
        around, name = paths.occurrence_in(tree, self.target, cst.Name, "name", self._is_expression)
        return paths.replaced(around, name, name.with_changes(value=self.new))

    def _is_expression(self, around: paths.Path, name: cst.Name) -> bool:
        *_, outer, parent = around
        if name.value != self.target.code or getattr(parent, _NAME_FIELDS.get(type(parent), ""), None) is name:
            return False
        if isinstance(parent, cst.AsName) and isinstance(outer, cst.ExceptHandler | cst.ExceptStarHandler):
            return False
        return not any(isinstance(node, _WITHOUT_EXPRESSIONS) for node in around)


def joined(statement: cst.BaseStatement, margin: int, step: str, width: int) -> cst.BaseStatement:
    """Return a statement that moved left to this margin, with its calls joined as far as a formatter would.

    Only calls at the end of a simple statement of several lines are joined.
    """
    for around, line in [*paths.inside((cst.IndentedBlock([statement]),), cst.SimpleStatementLine)]:
        path: paths.Path = (*around[1:], line, line.body[-1])
        while isinstance(call := getattr(path[-1], "value", None), cst.Subscript | cst.Attribute):
            path = (*path, call)  # `x = f(...)[0]`
        if isinstance(call, cst.Call) and "\n" in paths.code_of(line.with_changes(leading_lines=())).rstrip("\n"):
            new = laid_out(call, None, Place.of(path, call, step, width, margin))
            statement = statement.with_deep_changes(
                call, whitespace_before_args=new.whitespace_before_args, args=new.args
            )
    return statement


class Place(NamedTuple):
    """The room for a call: the indentation of its first line within its block, and the columns left on that `line`.

    `inner` is the indentation of arguments on lines of their own, and `room` the columns left there.
    """

    indent: str
    line: int
    inner: str
    room: int

    @classmethod
    def of(cls, around: paths.Path, call: cst.BaseExpression, step: str, width: int, margin: int = 0) -> Place:
        """Measure the room for a call, or what replaces it, in its statement; of a compound one, in its header.

        Args:
            around: the path to the call.
            call: the call, or the expression that is to be replaced.
            step: the indentation of one level.
            width: the longest line, in columns.
            margin: the indentation of the first node of the path, in columns.
        """
        innermost = max(at for at, node in enumerate(around) if isinstance(node, paths.STATEMENTS))
        statement = paths.replaced(around[innermost:], call, _MARK)
        bare: dict[str, object] = {"leading_lines": ()}
        if isinstance(getattr(statement, "body", None), cst.IndentedBlock):
            bare["body"] = cst.SimpleStatementSuite([cst.Pass()])
        if getattr(statement, "orelse", None) is not None:
            bare["orelse"] = None
        lines = paths.code_of(statement.with_changes(**bare)).splitlines()
        before, _, after = next(line for line in lines if _MARK.value in line).partition(_MARK.value)
        indent = before[: len(before) - len(before.lstrip())]
        inner, room = indent + step, width - margin - paths.margin_of(around, step)
        return cls(indent, room - paths.columns(before) - len(after), inner, room - paths.columns(inner))


@dataclass(frozen=True, slots=True)
class _Item:
    """One argument without its comma, with the comment after it and those on the lines above it."""

    argument: cst.Arg
    comment: str = ""
    above: list[str] = field(default_factory=list)

    @property
    def code(self) -> str:
        return paths.code_of(self.argument)

    @classmethod
    def of(cls, new: NewArgument) -> _Item:
        """Return a new argument, with the comment that names its parameter."""
        return cls(cst.Arg(cst.parse_expression(new.text)), f"# {new.comment}" if new.comment else "")

    def passed_as(self, keyword: str | None) -> _Item:
        """Return the argument as it is passed by this keyword, or by position if None."""
        value, name, equal = self.argument.value, self.argument.keyword, self.argument.equal
        if isinstance(value, cst.GeneratorExp | cst.NamedExpr) and not value.lpar:
            value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        if keyword not in ("*", "**", name and name.value):
            name = cst.Name(keyword) if keyword else None
            equal = cst.AssignEqual(_NO_SPACE, _NO_SPACE) if keyword else cst.MaybeSentinel.DEFAULT
        return replace(self, argument=self.argument.with_changes(value=value, keyword=name, equal=equal))


def laid_out(call: cst.Call, arguments: Sequence[NewArgument] | None, place: Place) -> cst.Call:
    """Return a call laid out again, with new `arguments` or, if None, with its own.

    Comments stay with their arguments. A list that had one argument per line (its trailing comma shows that) keeps
    this layout; otherwise the shortest of the three layouts that fits is used.
    """
    items, below = _items(call)
    if arguments is not None:
        chosen = [(_Item.of(new) if new.source is None else items[new.source], new.keyword) for new in arguments]
        items = [item.passed_as(keyword) for item, keyword in chosen]
    head = len(paths.code_of(call.func).rpartition("\n")[2])
    joined = ", ".join(item.code for item in items)
    commented = below or any(item.comment or item.above for item in items)
    ending = call.args[-1].comma if call.args else None
    exploded = isinstance(ending, cst.Comma) and "\n" in paths.code_of(ending.whitespace_after)
    may_share = not (exploded or commented or "\n" in joined)
    names = ", ".join("_" * len(items))
    if not items or (may_share and head + len(joined) + 2 <= place.line):
        layout = names
    elif may_share and len(joined) <= place.room:
        layout = f"\n{place.inner}{names}\n{place.indent}"
    else:
        # a generator without parentheses of its own stands alone, and no comma may follow it
        values = [item.argument.value for item in items]
        name = "_" if any(isinstance(value, cst.GeneratorExp) and not value.lpar for value in values) else "_,"
        lines = [line for item in items for line in (*item.above, f"{name}  {item.comment}".rstrip())]
        layout = "".join(f"\n{place.inner}{line}" for line in [*lines, *below]) + f"\n{place.indent}"
    # only white space is taken from the layout; the argument nodes are kept
    spaces = cst.ensure_type(cst.parse_expression(f"_({layout})"), cst.Call)
    laid = [
        item.argument.with_changes(comma=space.comma, whitespace_after_arg=space.whitespace_after_arg)
        for item, space in zip(items, spaces.args, strict=True)
    ]
    return call.with_changes(whitespace_before_args=spaces.whitespace_before_args, args=laid)


def _items(call: cst.Call) -> tuple[list[_Item], list[str]]:
    """Return the arguments of a call, and the comments below the last one."""
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
