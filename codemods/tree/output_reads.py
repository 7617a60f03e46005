"""Outputs that a model reads from its blocks for a cache, and that a GradientCheckpointingLayer does not return."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.facts.file_facts import ForwardSignature, ModuleCall
from ckpt_surgery.codemods.tree.arguments import given_arguments
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.tree.source_tree import SourceTree
from ckpt_surgery.codemods.wording import Because, WordedReason
from ckpt_surgery.model_patches.release_names import CACHE_SWITCH


class OutputRead(WordedReason):
    """Why a model fails once its block is a layer, and what to do about it."""

    MORE_OUTPUTS = (
        "{0} reads more outputs of {1} where `{2}` is True, and a layer sets its own `use_cache` to False: first add "
        "`{2} = False` under `if self.gradient_checkpointing and self.training` to that method"
    )


def failing_read(tree: SourceTree, ref: ClassRef) -> Because | None:
    """The first read that fails once `ref` is a layer, because the block returns less then; None if there is none."""
    for layer in _becoming(tree, ref):
        forward = tree.bases.forward(layer)
        for owner, call in tree.blocks.callers.get(layer, ()) if forward else ():
            switch = _cleared_switch(tree, owner, call, forward[1]) if forward and call.reads_more_under else ""
            if switch in call.reads_more_under and CACHE_SWITCH in tree.cleared(layer.path):
                return OutputRead.MORE_OUTPUTS.about(f"{owner.name}.{call.method}", layer.name, switch)
    return None


def _becoming(tree: SourceTree, ref: ClassRef) -> Iterator[ClassRef]:
    """The class, and the blocks that may become layers with it: copies, heirs, and those of the same base class."""
    yield ref
    twins = (twin for base in tree.bases.lineage(ref) for twin in tree.lineages.same(base))
    for other in dict.fromkeys(each for twin in twins for each in (twin, *tree.bases.heirs(twin))):
        if other is not ref and tree.blocks.checkpoints(other):
            yield other


def _cleared_switch(tree: SourceTree, owner: ClassRef, call: ModuleCall, forward: ForwardSignature) -> str:
    """What the call passes as `use_cache` where a layer clears it: as a keyword, now or after a repair of the call."""
    argument = next((argument for argument in call.args if argument.name == CACHE_SWITCH), None)
    if argument is None:
        site, given = tree.calls.of_any(owner, call), given_arguments(call.args, forward) or {}
        repaired = tree.calls.plan(site).arguments if site else None
        argument = given.get(CACHE_SWITCH) if any(new.keyword == CACHE_SWITCH for new in repaired or ()) else None
    return argument.text if argument and argument.is_value else ""
