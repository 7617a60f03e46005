"""Another name or constant in the place of one."""

from __future__ import annotations

import libcst as cst

from ckpt_surgery.codemods.edits.targeted import OccurrenceTransformer
from ckpt_surgery.codemods.repair import Occurrence

_NOT_ENTERED = (cst.Import, cst.ImportFrom, cst.Global, cst.Nonlocal, cst.MatchPattern)


class RenameOccurrence(OccurrenceTransformer):
    """Writes `new` for one occurrence of a name, `True` and `False` among them."""

    def __init__(self, name: Occurrence, new: str) -> None:
        super().__init__(name, "name")
        self._new = new
        self._words: set[cst.CSTNode] = set()

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Whether to go on inside a node: names that are no expressions do not count."""
        return not isinstance(node, _NOT_ENTERED) and super().on_visit(node)

    def visit_Name(self, node: cst.Name) -> bool:
        """Count it."""
        if node not in self._words:
            self.matches(node, node)
        return True

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        """What follows the dot is no expression."""
        self._words.add(node.attr)
        return True

    def visit_Arg(self, node: cst.Arg) -> bool:
        """A keyword is no expression."""
        self._words.update({node.keyword} if node.keyword else ())
        return True

    def visit_Param(self, node: cst.Param) -> bool:
        """A parameter's name is no expression."""
        self._words.add(node.name)
        return True

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        """A function's name is no expression."""
        self._words.add(node.name)
        return True

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        """A class's name is no expression."""
        self._words.add(node.name)
        return True

    def visit_ExceptHandler(self, node: cst.ExceptHandler) -> bool:
        """What an exception is called is no expression."""
        self._words.update({node.name.name} if node.name else ())
        return True

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        """The new name."""
        return updated_node.with_changes(value=self._new) if original_node is self.found else updated_node
