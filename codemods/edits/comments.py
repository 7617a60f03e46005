"""A comment above a class or function goes."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ckpt_surgery.codemods.edits.targeted import TargetedTransformer
from ckpt_surgery.codemods.repair import Definition


class RemoveComment(TargetedTransformer):
    """Takes out the line with a comment above a class or function, or between its decorators and it."""

    def __init__(self, owner: Definition, comment: str) -> None:
        super().__init__(owner)
        self._comment = comment

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        """The class without the comment."""
        return cst.ensure_type(self._without(updated_node), cst.ClassDef)

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        """The function without the comment."""
        return cst.ensure_type(self._without(updated_node), cst.FunctionDef)

    def _without(self, node: cst.ClassDef | cst.FunctionDef) -> cst.ClassDef | cst.FunctionDef:
        if not self.at_target:
            return node
        return node.with_changes(
            leading_lines=self._others(node.leading_lines),
            lines_after_decorators=self._others(node.lines_after_decorators),
        )

    def _others(self, lines: Sequence[cst.EmptyLine]) -> list[cst.EmptyLine]:
        return [line for line in lines if line.comment is None or line.comment.value.strip() != self._comment]
