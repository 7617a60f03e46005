"""Another name or constant in the place of one."""

from __future__ import annotations

import libcst as cst

from ckpt_surgery.codemods.edits.targeted import OccurrenceTransformer
from ckpt_surgery.codemods.repair import Occurrence


class RenameOccurrence(OccurrenceTransformer):
    """Writes `new` for one occurrence of a name, `True` and `False` among them."""

    def __init__(self, name: Occurrence, new: str) -> None:
        super().__init__(name, "name")
        self._new = new

    def visit_Name(self, node: cst.Name) -> bool:
        """Count it."""
        self.matches(node, node)
        return True

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        """The new name."""
        return updated_node.with_changes(value=self._new) if original_node is self.found else updated_node
