"""A conditional expression that checkpoints goes: what follows its else takes its place."""

from __future__ import annotations

import libcst as cst

from ckpt_surgery.codemods.edits.arguments import StatementTransformer, place_of
from ckpt_surgery.codemods.edits.branch_comments import left_of
from ckpt_surgery.codemods.edits.layout import laid_out
from ckpt_surgery.codemods.edits.targeted import code_of, leading_lines
from ckpt_surgery.codemods.repair import Occurrence


class RemoveInlineExpression(StatementTransformer):
    """Replaces `a if test else b` by `b`, laid out as a formatter would.

    Comments of what goes are kept above the statement, unless they speak of checkpointing.
    """

    def __init__(self, expression: Occurrence, *, width: int) -> None:
        super().__init__(expression, "conditional expression")
        self._width = width
        self._kept: cst.BaseExpression | None = None
        self._statement: cst.CSTNode | None = None

    def visit_IfExp(self, node: cst.IfExp) -> bool:
        """Count it; where it is the one, lay its else out in its place."""
        self.matches(node)
        if node is self.found and self._kept is None:
            self._statement = self.statements[-1]
            self._kept = _alone(node)
            if isinstance(self._kept, cst.Call):
                place = place_of(node, self._statement, self.margin, self.step, self._width)
                self._kept = laid_out(self._kept, None, place)
        return True

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> cst.BaseExpression:
        """What follows the else."""
        return self._kept if self._kept and original_node is self.found else updated_node

    def on_leave(
        self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT
    ) -> cst.CSTNodeT | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNodeT]:
        """What takes the node's place: of the statement, itself below the comments of what went."""
        left = super().on_leave(original_node, updated_node)
        if original_node is self._statement and isinstance(left, cst.CSTNode) and isinstance(self.found, cst.IfExp):
            lines = [cst.EmptyLine(comment=cst.Comment(text)) for text in left_of(_going(self.found))]
            return left.with_changes(leading_lines=[*leading_lines(left), *lines]) if lines else left
        return left


def _alone(node: cst.IfExp) -> cst.BaseExpression:
    """What follows the else, in the parentheses of the whole where it needs them."""
    kept = node.orelse
    atom = isinstance(kept, cst.Call | cst.Name | cst.Attribute | cst.Subscript)
    head = code_of(kept.func) if isinstance(kept, cst.Call) else code_of(kept)
    if kept.lpar or not node.lpar or (atom and "\n" not in head):
        return kept
    return kept.with_changes(lpar=node.lpar, rpar=node.rpar)


def _going(node: cst.IfExp) -> list[cst.CSTNode]:
    spaces = [node.whitespace_before_if, node.whitespace_after_if, node.whitespace_before_else]
    return [*node.lpar, node.body, *spaces, node.test, node.whitespace_after_else, *node.rpar]
