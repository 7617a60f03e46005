"""What the checkpoint calls of methods run: blocks, or functions that are no blocks at all."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.facts.file_facts import CheckpointCall, InlineBranch
from ckpt_surgery.codemods.facts.syntax import Span
from ckpt_surgery.codemods.providers.checkpointed_functions import CHECKPOINTED
from ckpt_surgery.codemods.tree.blocks import paths_behind
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.tree.source_tree import SourceTree


def finds_last_values(tree: SourceTree, owner: ClassRef, checkpoint: CheckpointCall) -> bool:
    """Whether a function that is checkpointed finds other values in the recompute, because the loop rebinds names."""
    functions = tree.names.read(owner.path)[CHECKPOINTED]
    return any(
        capture.rebound for function in functions if function.span == checkpoint.span for capture in function.captures
    )


def runs_functions(tree: SourceTree, owner: ClassRef, inline: InlineBranch) -> bool:
    """Whether an inline branch hands torch functions, with no module behind them that could become a layer."""
    functions = {function.span for function in tree.names.read(owner.path)[CHECKPOINTED] if function.option != "model"}
    return all(
        checkpoint.span in functions
        and not any(tree.containers.reached(owner, path) for path in paths_behind(owner, inline, checkpoint))
        for checkpoint in inline.checkpoints
    )


def beside_direct_calls(tree: SourceTree, path: str) -> Iterator[Span]:
    """The checkpoint calls of a file that run blocks and stand beside a direct call of the same: CKPT002 has these."""
    for owner in tree.names.classes(path):
        for inline in owner.cls.inlines:
            for checkpoint in inline.checkpoints if inline.orelse else ():
                if tree.containers.classes_at(owner, paths_behind(owner, inline, checkpoint)):
                    yield checkpoint.span
