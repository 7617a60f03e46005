"""The repairs as libcst codemods, for those who run theirs with `python -m libcst.tool codemod`.

    python -m libcst.tool codemod -x --no-format ckpt_surgery.static.commands.RepairAll transformers/models/

makes the safe repairs of every rule. Each rule with safe repairs has a command of its own, called after it:
`PlainBlock` for `plain_block`. The decisions need the whole tree, so each worker process decides once for the
folder a file lies in and then runs the transformers on its files.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import ClassVar

import libcst as cst
from libcst.codemod import CodemodCommand, SkipFile

from ckpt_surgery.codemods import RULES, Rule
from ckpt_surgery.codemods.edits.rewrite import transformed
from ckpt_surgery.codemods.finding import RepairKind
from ckpt_surgery.codemods.repair import SourceRepair
from ckpt_surgery.static.apply import apply


@cache
def _decided(root: str, codes: tuple[str, ...]) -> dict[str, tuple[tuple[SourceRepair, ...], ...]]:
    """Return repairs by resolved path, safe ones only: a worker may meet files that another one has changed."""
    result = apply([root], select=codes, write=False, jobs=1, cache=False)
    return {str(Path(change.path).resolve()): change.repairs for change in result.changes}


def tree_of(path: Path) -> Path:
    """Return the folder that decides for a file: `models` in a transformers tree, its own folder elsewhere."""
    return next((parent for parent in path.parents if parent.name == "models"), path.parent)


class RepairAll(CodemodCommand):
    """Every safe repair of every rule, or of the rules in `codes` alone."""

    DESCRIPTION = "Make gradient checkpointing work: every safe repair of ckpt_surgery."
    codes: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls, rule: Rule) -> type[RepairAll]:
        """Return the command that makes the repairs of one rule."""
        members = {
            "__doc__": f"{rule.code} alone.",
            "__module__": __name__,
            "DESCRIPTION": f"Repair what {rule.code} finds: {rule.summary}",
            "codes": (rule.code,),
        }
        return type(rule.name.title().replace("_", ""), (cls,), members)

    def transform_module_impl(self, tree: cst.Module) -> cst.Module:
        """Return the file as it is after the repair of the tree that it lies in."""
        if self.context.filename is None:
            raise SkipFile("ckpt_surgery decides on files, and this module has no file name")
        path = Path(self.context.filename).resolve()
        for repairs in _decided(str(tree_of(path)), self.codes).get(str(path), ()):
            tree = transformed(tree, repairs)
        return tree


_SAFE = [RepairAll.of(rule) for rule in RULES if rule.repair is RepairKind.SAFE]
COMMANDS = {command.__name__: command for command in _SAFE}
"""The commands of single rules, by name. Each is an attribute of this module, where libcst looks for it."""

globals().update(COMMANDS)
