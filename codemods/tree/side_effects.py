"""Find what keeps a block from being a layer: values it keeps, past state it needs, outputs that models read."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from ckpt_surgery.codemods.facts.argument_names import is_past_state
from ckpt_surgery.codemods.facts.cache_reads import CacheRead, cache_reads
from ckpt_surgery.codemods.facts.file_facts import ForwardSignature, ModuleCall
from ckpt_surgery.codemods.facts.kept_values import KeptValue, kept_values
from ckpt_surgery.codemods.tree.arguments import given_arguments
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.tree.source_tree import SourceTree
from ckpt_surgery.codemods.wording import Because, WordedReason
from ckpt_surgery.model_patches.release_names import CACHE_SWITCH


@dataclass(frozen=True, slots=True)
class Kept:
    """A value that a block, or a part of it, keeps beside its result."""

    owner: str
    value: KeptValue


@dataclass(frozen=True, slots=True)
class NeededCache:
    """Past state that a block, or a part of it, reads although a layer would set it to None."""

    owner: str
    read: CacheRead


def kept_value(tree: SourceTree, block: ClassRef) -> Kept | None:
    """Return what a block or something that it holds keeps, with its gradient first; None if they keep nothing."""
    values = [
        Kept(ref.name, value)
        for ref in _with_parts(tree, block)
        for value in kept_values(_methods(tree, ref), partial(tree.function_node, ref.path), is_block=ref is block)
    ]
    return min(values, key=lambda kept: -kept.value.flow, default=None)


def needed_cache(tree: SourceTree, block: ClassRef) -> NeededCache | None:
    """Find the first read of past state that fails, or finds something else, once a layer clears it."""
    cleared = _parameters(tree, block) & set(tree.layers.cleared(block.path)) - {CACHE_SWITCH}
    for ref in _with_parts(tree, block) if cleared else ():
        names = cleared if ref is block else set(filter(is_past_state, _parameters(tree, ref)))
        for read in cache_reads(_methods(tree, ref), names) if names else ():
            return NeededCache(ref.name, read)
    return None


def _parameters(tree: SourceTree, ref: ClassRef) -> set[str]:
    forward = tree.bases.forward(ref)
    return {parameter.name for parameter in forward[1].params} if forward else set()


def _with_parts(tree: SourceTree, block: ClassRef) -> Iterator[ClassRef]:
    yield block
    yield from sorted(set(tree.containers.with_parts(block)) - {block}, key=lambda ref: (ref.path, ref.cls.span.line))


def _methods(tree: SourceTree, ref: ClassRef) -> Mapping[str, ast.FunctionDef]:
    """Return the methods of a class and those that it inherits, the nearest of each name."""
    methods: dict[str, ast.FunctionDef] = {}
    for base in tree.bases.lineage(ref):
        for node in tree.class_node(base).body:
            if isinstance(node, ast.FunctionDef):
                methods.setdefault(node.name, node)
    return methods


class OutputRead(WordedReason):
    """The reason why a model fails once its block is a layer, with advice."""

    MORE_OUTPUTS = (
        "{0} reads more outputs of {1} where `{2}` is True, and a layer sets its own `use_cache` to False: first add "
        "`{2} = False` under `if self.gradient_checkpointing and self.training` to that method"
    )


def failing_read(tree: SourceTree, ref: ClassRef) -> Because | None:
    """Find the first read that fails once `ref` is a layer, because the block returns less then; None for none."""
    for layer in _becoming(tree, ref):
        forward = tree.bases.forward(layer)
        for owner, call in tree.blocks.callers.get(layer, ()) if forward else ():
            switch = _cleared_switch(tree, owner, call, forward[1]) if forward and call.reads_more_under else ""
            if switch in call.reads_more_under and CACHE_SWITCH in tree.layers.cleared(layer.path):
                return OutputRead.MORE_OUTPUTS.about(f"{owner.name}.{call.method}", layer.name, switch)
    return None


def _becoming(tree: SourceTree, ref: ClassRef) -> Iterator[ClassRef]:
    """Yield the class, and what may become a layer with it: copies, heirs, and those of the same base class."""
    yield ref
    twins = (twin for base in tree.bases.lineage(ref) for twin in tree.lineages.same(base))
    for other in dict.fromkeys(each for twin in twins for each in (twin, *tree.bases.heirs(twin))):
        if other is not ref and tree.blocks.checkpoints(other):
            yield other


def _cleared_switch(tree: SourceTree, owner: ClassRef, call: ModuleCall, forward: ForwardSignature) -> str:
    """Return what the call passes as `use_cache` where a layer clears it: by keyword, now or once repaired."""
    argument = next((argument for argument in call.args if argument.name == CACHE_SWITCH), None)
    if argument is None:
        site, given = tree.calls.of_any(owner, call), given_arguments(call.args, forward) or {}
        repaired = tree.calls.plan(site).arguments if site else None
        argument = given.get(CACHE_SWITCH) if any(new.keyword == CACHE_SWITCH for new in repaired or ()) else None
    return argument.text if argument and argument.is_value else ""
