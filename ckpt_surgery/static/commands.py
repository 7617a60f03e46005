"""The repairs as libcst codemods, to be run by `python -m libcst.tool codemod`.

    python -m libcst.tool codemod -x --no-format ckpt_surgery.static.commands.RepairAll transformers/models/

makes the safe repairs of every rule. Each rule with safe repairs also has a command of its own, named after it:
`PlainBlock` for `plain_block`. Decisions need the whole tree, so each worker process makes them once for the
folder that a file is in, and then runs the transformers on its files.
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
    """Return the safe repairs of each round by resolved path; another worker may have changed some files already."""
    result = apply([root], select=codes, write=False, jobs=1, cache=False)
    return {str(Path(change.path).resolve()): change.repairs for change in result.changes}


def tree_of(path: Path) -> Path:
    """Return the folder that is looked at for a file: `models` in a transformers tree, else its own folder."""
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
        """Return the file as it is after the repair of its tree."""
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
