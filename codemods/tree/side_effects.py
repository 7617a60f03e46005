"""What blocks do beside returning: values that they keep, and past state that they cannot do without.

Read from the text of a class when a repair asks for it: few classes are asked about.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from ckpt_surgery.codemods.facts.argument_names import is_past_state
from ckpt_surgery.codemods.facts.cache_reads import CacheRead, cache_reads
from ckpt_surgery.codemods.facts.kept_values import KeptValue, kept_values
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.tree.source_tree import SourceTree
from ckpt_surgery.model_patches.release_names import CACHE_SWITCH


@dataclass(frozen=True, slots=True)
class Kept:
    """A value that a block, or a part of it, keeps beside what it returns."""

    owner: str
    value: KeptValue


@dataclass(frozen=True, slots=True)
class NeededCache:
    """Past state that a block, or a part of it, reads although a layer would set it to None."""

    owner: str
    read: CacheRead


def kept_value(tree: SourceTree, block: ClassRef) -> Kept | None:
    """What a block or something that it holds keeps, with its gradient first; None if they keep nothing."""
    found = [
        Kept(ref.name, value)
        for ref in _with_parts(tree, block)
        for value in kept_values(_methods(tree, ref), partial(tree.function_node, ref.path), is_block=ref is block)
    ]
    return min(found, key=lambda kept: -kept.value.flow, default=None)


def needed_cache(tree: SourceTree, block: ClassRef) -> NeededCache | None:
    """The first read of past state that fails, or finds something else, once a layer clears it."""
    cleared = _parameters(tree, block) & set(tree.cleared(block.path)) - {CACHE_SWITCH}
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
    """The methods of a class and those that it inherits, the nearest of each name."""
    methods: dict[str, ast.FunctionDef] = {}
    for base in tree.bases.lineage(ref):
        for node in tree.class_node(base).body:
            if isinstance(node, ast.FunctionDef):
                methods.setdefault(node.name, node)
    return methods
