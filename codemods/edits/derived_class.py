"""A new layer class beside a class that must stay plain: an imported one, or one that is also used elsewhere."""

from __future__ import annotations

from ckpt_surgery.codemods.edits.conversion import layer_import
from ckpt_surgery.codemods.edits.imports import by_type
from ckpt_surgery.codemods.facts.file_facts import Import, Path
from ckpt_surgery.codemods.finding import Edit
from ckpt_surgery.codemods.tree.classes import GCL, ClassRef
from ckpt_surgery.codemods.tree.source_tree import SourceTree
from ckpt_surgery.model_patches import family_facts


def aliased(tree: SourceTree, owner: ClassRef, ref: ClassRef) -> tuple[Edit, ...]:
    """A class that an availability guard imports under the block's name becomes a layer of that name.

    `from package import Block as FooBlock` beside `class FooBlock` turns into the plain import and
    `class FooBlock(GradientCheckpointingLayer, Block)`.
    """
    alias = alias_of(tree, owner.path, ref.name)
    if alias is None:
        return ()
    imports = _guarded(tree, owner.path)
    source = tree.source(owner.path)
    start, end = source.range(alias.span)
    indent = source.indent(start)
    block = source.newline.join(
        [source.newline, f"{indent}class {alias.name}({GCL}, {alias.original}):", f"{indent}    pass"]
    )
    others = [item for item in imports if item.module == alias.module and item.name == item.original]
    guard_end = max(source.range(item.span)[1] for item in imports if item.guard == alias.guard)
    edits = list(layer_import(tree, owner.path))
    if others:
        names = sorted({alias.original, *(item.original for item in others)}, key=by_type)
        low, high = source.range(others[0].span)
        edits.append(Edit(owner.path, source.line_start(start), source.line_end(end) + len(source.newline), ""))
        edits.append(Edit(owner.path, low, high, f"from {alias.module} import {', '.join(names)}"))
    else:
        edits.append(Edit(owner.path, start, end, f"from {alias.module} import {alias.original}"))
    edits.append(Edit(owner.path, guard_end, guard_end, block))
    return tuple(edits)


def alias_of(tree: SourceTree, path: str, name: str) -> Import | None:
    """The guarded import statement that brings a class in as `name`, where it brings in nothing else."""
    imports = _guarded(tree, path)
    alias = next((item for item in imports if item.name == name != item.original != ""), None)
    return alias if alias and sum(item.span == alias.span for item in imports) == 1 else None


def _guarded(tree: SourceTree, path: str) -> list[Import]:
    facts = tree.names.facts(path)
    return [item for item in facts.imports if item.guard] if facts else []


def derive(tree: SourceTree, owner: ClassRef, paths: tuple[Path, ...], ref: ClassRef) -> tuple[Edit, ...]:
    """A subclass of `ref` that is a layer, made for one stack: elsewhere `ref` stands inside other blocks."""
    derived = family_facts(owner.path).derived
    attribute = next((path[0] for path in paths if path and path[0] in derived), None)
    if attribute is None or ref.path != owner.path:
        return ()
    name = derived[attribute]
    source = tree.source(ref.path)
    _, end = source.range(ref.cls.span)
    newline = source.newline
    doc = f'"""A [`{ref.name}`] that is a block of its own in `{owner.name}`."""'
    block = newline * 3 + f"class {name}({GCL}, {ref.name}):" + newline + f"    {doc}"
    edits = [*layer_import(tree, ref.path), Edit(ref.path, end, end, block)]
    for _, built in tree.bases.attribute(owner, attribute):
        for item in built.items:
            if item.name == ref.name and item.span:
                edits.append(Edit(owner.path, *source.range(item.span), name))
    return tuple(edits)
