"""The repairs as libcst codemods, for those who run theirs with `python -m libcst.tool codemod`.

    python -m libcst.tool codemod -x --no-format ckpt_surgery.static.commands.Repair transformers/models/

makes the safe repairs of every rule; each other command makes those of one. The decisions need the whole
tree, so each worker process decides once for the folder a file lies in and then hands out its files.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import ClassVar

import libcst as cst
from libcst.codemod import CodemodCommand, SkipFile

from ckpt_surgery.static.apply import apply


@cache
def _repaired(root: str, codes: tuple[str, ...]) -> dict[str, str]:
    """New texts by resolved path. Only safe repairs: a worker may meet files that another one has changed."""
    result = apply([root], select=codes, write=False, jobs=1, cache=False)
    return {str(Path(change.path).resolve()): change.after for change in result.changes}


def tree_of(path: Path) -> Path:
    """The folder that decides for a file: `models` in a transformers tree, its own folder elsewhere."""
    for parent in path.parents:
        if parent.name == "models":
            return parent
    return path.parent


class Repair(CodemodCommand):
    """Every safe repair: blocks become layers, inline branches go, arguments are passed rightly."""

    DESCRIPTION = "Make gradient checkpointing work: every safe repair of ckpt_surgery."
    codes: ClassVar[tuple[str, ...]] = ()

    def transform_module_impl(self, tree: cst.Module) -> cst.Module:
        """The file as it is after the repair of the tree that it lies in."""
        if self.context.filename is None:
            raise SkipFile("ckpt_surgery decides on files, and this module has no file name")
        path = Path(self.context.filename).resolve()
        after = _repaired(str(tree_of(path)), self.codes).get(str(path))
        return tree if after is None else cst.parse_module(after)


class PlainBlock(Repair):
    """CKPT001 alone."""

    DESCRIPTION = "Blocks of models that claim gradient checkpointing become GradientCheckpointingLayers."
    codes = ("CKPT001",)


class InlineCheckpoint(Repair):
    """CKPT002 alone."""

    DESCRIPTION = "Inline checkpoint branches give way to the direct call of a GradientCheckpointingLayer."
    codes = ("CKPT002",)


class KeywordGradient(Repair):
    """CKPT003 alone."""

    DESCRIPTION = "Gradient arguments of blocks become positional."
    codes = ("CKPT003",)


class PositionalPastState(Repair):
    """CKPT004 alone."""

    DESCRIPTION = "Past state of blocks becomes a keyword."
    codes = ("CKPT004",)
