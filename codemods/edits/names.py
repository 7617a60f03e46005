"""Another name or constant in the place of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import libcst as cst

from ckpt_surgery.codemods.edits.targeted import ModuleTransformer, Path, chosen, definition_in, inside, replaced
from ckpt_surgery.codemods.repair import Occurrence

_WORDS: Mapping[type[cst.CSTNode], str] = {
    cst.Attribute: "attr",
    cst.Arg: "keyword",
    cst.Param: "name",
    cst.FunctionDef: "name",
    cst.ClassDef: "name",
}
"""Where a name is no expression."""
_NO_EXPRESSIONS = (cst.Import, cst.ImportFrom, cst.Global, cst.Nonlocal, cst.MatchPattern)


@dataclass
class RenameOccurrence(ModuleTransformer):
    """Writes `new` for one occurrence of a name, `True` and `False` among them."""

    target: Occurrence
    new: str

    def _changed(self, tree: cst.Module) -> cst.CSTNode:
        names = inside(definition_in(tree, self.target.definition), cst.Name)
        path = chosen(filter(self._is_occurrence, names), self.target, "name")
        return replaced(path, path[-1].with_changes(value=self.new))

    def _is_occurrence(self, path: Path) -> bool:
        """Whether a path leads to the name, where it is an expression."""
        *_, around, outer, name = path
        if cst.ensure_type(name, cst.Name).value != self.target.code:
            return False
        if isinstance(outer, cst.AsName) and isinstance(around, cst.ExceptHandler | cst.ExceptStarHandler):
            return False
        is_word = getattr(outer, _WORDS.get(type(outer), ""), None) is name
        return not is_word and not any(isinstance(node, _NO_EXPRESSIONS) for node in path)
