"""Another argument list for a call, and calls laid out anew where they have come to stand further left."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ckpt_surgery.codemods.edits.layout import Place, laid_out
from ckpt_surgery.codemods.edits.targeted import SILENT, OccurrenceTransformer, code_of, columns, indentation
from ckpt_surgery.codemods.repair import NewArgument, Occurrence

_MARK = cst.Name("_\N{MIDDLE DOT}_")
"""Stands for a call where the rest of its line is measured. No code has a name like it."""
_STATEMENTS = (
    cst.BaseStatement,
    cst.Else,
    cst.ExceptHandler,
    cst.ExceptStarHandler,
    cst.Finally,
    cst.MatchCase,
)
"""What begins a line of its own."""


class StatementTransformer(OccurrenceTransformer):
    """Finds an occurrence that is no name, and keeps the statements that it is in."""

    silent = SILENT | {cst.Name}

    def __init__(self, occurrence: Occurrence, what: str) -> None:
        super().__init__(occurrence, what)
        self.statements: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Keep the statement that is being visited."""
        if type(node) in self.silent:
            return False
        if isinstance(node, _STATEMENTS):
            self.statements.append(node)
        return super().on_visit(node)

    def on_leave(
        self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT
    ) -> cst.CSTNodeT | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNodeT]:
        """What takes the node's place."""
        if type(original_node) in self.silent:
            return updated_node
        if isinstance(original_node, _STATEMENTS):
            self.statements.pop()
        return super().on_leave(original_node, updated_node)


class RearrangeArguments(StatementTransformer):
    """Gives one call another argument list, laid out as a formatter would."""

    def __init__(self, call: Occurrence, arguments: Sequence[NewArgument], *, width: int) -> None:
        super().__init__(call, "call of")
        self._arguments = tuple(arguments)
        self._width = width
        self._place: Place | None = None

    def visit_Call(self, node: cst.Call) -> bool:
        """Count it; where it is the one, measure its place."""
        self.matches(node, node.func)
        if node is self.found and self._place is None:
            self._place = place_of(node, self.statements[-1], self.margin, self.step, self._width)
        return True

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """The call with its new arguments."""
        if original_node is not self.found or self._place is None:
            return updated_node
        return laid_out(updated_node, self._arguments, self._place)


def place_of(call: cst.BaseExpression, statement: cst.CSTNode, margin: int, step: str, width: int) -> Place:
    """Where a call, or what gives way to one, stands in a statement. A compound one counts without its body."""
    bare: dict[str, object] = {"leading_lines": ()} if hasattr(statement, "leading_lines") else {}
    if isinstance(getattr(statement, "body", None), cst.IndentedBlock):
        bare["body"] = cst.SimpleStatementSuite([cst.Pass()])
    if getattr(statement, "orelse", None) is not None:
        bare["orelse"] = None
    marked = statement.with_changes(**bare).deep_replace(call, _MARK)
    line = next(line for line in code_of(marked).splitlines() if _MARK.value in line)
    before, _, after = line.partition(_MARK.value)
    indent = before[: len(before) - len(before.lstrip())]
    return Place(margin, indent, step, margin + columns(before), len(after), width)


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
        call = _value_call(original_node.body[-1])
        lines = code_of(original_node.with_changes(leading_lines=())).rstrip("\n")
        if call is None or "\n" not in lines:
            return updated_node
        new = laid_out(call, None, place_of(call, original_node, self._margin, self._step, self._width))
        return cst.ensure_type(original_node.deep_replace(call, new), cst.SimpleStatementLine)


def _value_call(statement: cst.BaseSmallStatement) -> cst.Call | None:
    """The call that a statement ends with: `x = f(...)`, `f(...)`, `return f(...)`, `x = f(...)[0]`."""
    value = getattr(statement, "value", None)
    while isinstance(value, cst.Subscript | cst.Attribute):
        value = value.value
    return value if isinstance(value, cst.Call) else None
