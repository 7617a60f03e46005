"""Another argument list for a call, another name in the place of one, and calls laid out anew that have moved left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import libcst as cst

from ckpt_surgery.codemods.edits import paths
from ckpt_surgery.codemods.edits.layout import Place, laid_out
from ckpt_surgery.codemods.repair import NewArgument, Occurrence

_MARK = cst.Name("_\N{MIDDLE DOT}_")
"""Stands for a call where the rest of its line is measured. No code has a name like it."""
_NO_EXPRESSIONS = (cst.Import, cst.ImportFrom, cst.Global, cst.Nonlocal, cst.MatchPattern)
_WORDS: Mapping[type[cst.CSTNode], str] = {
    cst.Attribute: "attr",
    cst.Arg: "keyword",
    cst.Param: "name",
    cst.FunctionDef: "name",
    cst.ClassDef: "name",
}
"""Where a name is no expression."""


@dataclass
class RearrangeArguments(paths.ModuleTransformer):
    """Gives one call another argument list, laid out as a formatter would."""

    target: Occurrence
    arguments: Sequence[NewArgument]
    width: int = field(kw_only=True)

    def _changed(self, tree: cst.Module) -> cst.CSTNode:
        around, call = paths.occurrence_in(tree, self.target, cst.Call, "call of", self._is_called)
        place = place_of(around, call, tree.default_indent, self.width)
        return paths.replaced(around, call, laid_out(call, self.arguments, place))

    def _is_called(self, _: paths.Path, call: cst.Call) -> bool:
        """Whether a call is of the target. Most calls are told by the last name, without writing their code."""
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
        """Whether a name is the target's, and an expression."""
        *_, outer, parent = around
        if name.value != self.target.code or getattr(parent, _WORDS.get(type(parent), ""), None) is name:
            return False
        if isinstance(parent, cst.AsName) and isinstance(outer, cst.ExceptHandler | cst.ExceptStarHandler):
            return False
        return not any(isinstance(node, _NO_EXPRESSIONS) for node in around)


def place_of(around: paths.Path, call: cst.BaseExpression, step: str, width: int, margin: int = 0) -> Place:
    """Where a call, or what gives way to one, stands in its statement. A compound one counts without its body.

    `margin` is the indentation of the first node of the path in columns, `step` that of one level.
    """
    first = max(at for at, node in enumerate(around) if isinstance(node, paths.STATEMENTS))
    statement = paths.replaced(around[first:], call, _MARK)
    bare: dict[str, object] = {"leading_lines": ()}
    if isinstance(getattr(statement, "body", None), cst.IndentedBlock):
        bare["body"] = cst.SimpleStatementSuite([cst.Pass()])
    if getattr(statement, "orelse", None) is not None:
        bare["orelse"] = None
    lines = paths.code_of(statement.with_changes(**bare)).splitlines()
    before, _, after = next(line for line in lines if _MARK.value in line).partition(_MARK.value)
    indent = before[: len(before) - len(before.lstrip())]
    inner, room = indent + step, width - margin - paths.margin_of(around, step)
    return Place(indent, room - paths.columns(before) - len(after), inner, room - paths.columns(inner))


def joined(statement: cst.BaseStatement, margin: int, step: str, width: int) -> cst.BaseStatement:
    """A statement that has moved left to this margin, with the calls joined that a formatter would now join.

    They are those that a simple statement of several lines ends with.
    """
    for around, line in [*paths.inside((cst.IndentedBlock([statement]),), cst.SimpleStatementLine)]:
        path: paths.Path = (*around[1:], line, line.body[-1])
        while isinstance(call := getattr(path[-1], "value", None), cst.Subscript | cst.Attribute):
            path = (*path, call)  # `x = f(...)[0]`
        if isinstance(call, cst.Call) and "\n" in paths.code_of(line.with_changes(leading_lines=())).rstrip("\n"):
            new = laid_out(call, None, place_of(path, call, step, width, margin))
            statement = statement.with_deep_changes(
                call, whitespace_before_args=new.whitespace_before_args, args=new.args
            )
    return statement
