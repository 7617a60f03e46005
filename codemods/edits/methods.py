"""A method goes."""

from __future__ import annotations

import libcst as cst

from ckpt_surgery.codemods.edits.targeted import TargetedTransformer, leading_lines
from ckpt_surgery.codemods.repair import Definition


class RemoveMethod(TargetedTransformer):
    """Takes a method out of its class, with the comments right above it; `pass` takes its place in an empty class."""

    def __init__(self, method: Definition) -> None:
        super().__init__(method)
        self._method: cst.FunctionDef | None = None

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        """Keep it; it is not entered."""
        self._method = self._method or node
        return False

    def on_leave(
        self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT
    ) -> cst.CSTNodeT | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNodeT]:
        """What takes the place of a node: of the block that holds the method, the block without it."""
        left = super().on_leave(original_node, updated_node)
        if isinstance(original_node, cst.IndentedBlock) and isinstance(updated_node, cst.IndentedBlock):
            at = next((at for at, node in enumerate(original_node.body) if node is self._method), None)
            if at is not None:
                body, left_over = _without(list(updated_node.body), at)
                return updated_node.with_changes(body=body, footer=[*left_over, *updated_node.footer])
        return left


def _without(body: list[cst.BaseStatement], at: int) -> tuple[list[cst.BaseStatement], list[cst.EmptyLine]]:
    """The statements without the one at `at`, and the lines above it that end the block now."""
    above = _above(body.pop(at))
    if not body:
        return [cst.SimpleStatementLine([cst.Pass()], leading_lines=above)], []
    if at == len(body):
        return body, above
    own = leading_lines(body[at])
    first = next((at for at, line in enumerate(own) if line.comment is not None), len(own))
    body[at] = body[at].with_changes(leading_lines=[*above, *(own if at else own[first:])])
    return body, []


def _above(method: cst.BaseStatement) -> list[cst.EmptyLine]:
    """The lines above a method that stay: those that a blank line sets apart from the comments right above it."""
    lines = leading_lines(method)
    while lines and lines[-1].comment is not None:
        lines.pop()
    while lines and lines[-1].comment is None:
        lines.pop()
    return lines
