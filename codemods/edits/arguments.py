"""Another argument list for a call, and calls laid out anew where they have come to stand further left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst

from ckpt_surgery.codemods.edits.layout import Place, laid_out
from ckpt_surgery.codemods.edits.targeted import (
    ModuleTransformer,
    Path,
    chosen,
    code_of,
    columns,
    definition_in,
    indentation,
    inside,
    is_code,
    margin_of,
    replaced,
    statement_of,
)
from ckpt_surgery.codemods.repair import NewArgument, Occurrence

_MARK = cst.Name("_\N{MIDDLE DOT}_")
"""Stands for a call where the rest of its line is measured. No code has a name like it."""


@dataclass
class RearrangeArguments(ModuleTransformer):
    """Gives one call another argument list, laid out as a formatter would."""

    target: Occurrence
    arguments: Sequence[NewArgument]
    width: int = field(kw_only=True)

    def _changed(self, tree: cst.Module) -> cst.CSTNode:
        calls = inside(definition_in(tree, self.target.definition), cst.Call)
        path = chosen(filter(self._is_occurrence, calls), self.target, "call of")
        call = cst.ensure_type(path[-1], cst.Call)
        return replaced(path, laid_out(call, self.arguments, place_of(path, self.width)))

    def _is_occurrence(self, path: Path) -> bool:
        return is_code(cst.ensure_type(path[-1], cst.Call).func, self.target.code)


def place_of(path: Path, width: int) -> Place:
    """Where a call, or what gives way to one, stands."""
    step = cst.ensure_type(path[0], cst.Module).default_indent
    return _place_in(path[statement_of(path) :], margin_of(path), step, width)


def _place_in(path: Path, margin: int, step: str, width: int) -> Place:
    """The same, on a path from its statement on. A compound statement counts without its body."""
    statement = replaced(path, _MARK)
    bare: dict[str, object] = {"leading_lines": ()} if hasattr(statement, "leading_lines") else {}
    if isinstance(getattr(statement, "body", None), cst.IndentedBlock):
        bare["body"] = cst.SimpleStatementSuite([cst.Pass()])
    if getattr(statement, "orelse", None) is not None:
        bare["orelse"] = None
    lines = code_of(statement.with_changes(**bare)).splitlines()
    before, _, after = next(line for line in lines if _MARK.value in line).partition(_MARK.value)
    indent = before[: len(before) - len(before.lstrip())]
    line, inner = width - margin - columns(before) - len(after), indent + step
    return Place(indent, inner, line, width - margin - columns(inner))


class CallJoiner(cst.CSTTransformer):
    """Lays statements that have moved left out anew: the calls that a formatter would now join are joined.

    `margin` is the indentation of the statement that is visited in columns, `step` that of one level.
    """

    def __init__(self, margin: int, step: str, width: int) -> None:
        super().__init__()
        self._margin, self._step, self._width = margin, step, width

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> bool:
        """One level in."""
        self._margin += indentation(node, self._step)
        return True

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """One level out."""
        self._margin -= indentation(original_node, self._step)
        return updated_node

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> bool:
        """Not entered."""
        return False

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        """The statement with its call laid out anew, where it ends with a call and takes several lines."""
        path: Path = (original_node, original_node.body[-1])
        while isinstance(value := getattr(path[-1], "value", None), cst.Subscript | cst.Attribute):
            path = (*path, value)  # `x = f(...)[0]`
        lines = code_of(original_node.with_changes(leading_lines=())).rstrip("\n")
        if not isinstance(value, cst.Call) or "\n" not in lines:
            return updated_node
        path = (*path, value)
        new = laid_out(value, None, _place_in(path, self._margin, self._step, self._width))
        return cst.ensure_type(replaced(path, new), cst.SimpleStatementLine)
