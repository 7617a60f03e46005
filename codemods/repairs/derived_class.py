"""A new layer class beside a class that must stay plain: an imported one, or one that is also used elsewhere."""

from __future__ import annotations

from ckpt_surgery.codemods.facts.file_facts import AttributePath, Import
from ckpt_surgery.codemods.repair import DeriveImportedLayer, DeriveLayer, SourceRepair
from ckpt_surgery.codemods.repairs.calls import layer_import, name_repair
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.tree.source_tree import SourceTree
from ckpt_surgery.model_patches import family_facts


def aliased(tree: SourceTree, owner: ClassRef, ref: ClassRef) -> tuple[SourceRepair, ...]:
    """A class that an availability guard imports under the block's name becomes a layer of that name.

    `from package import Block as FooBlock` beside `class FooBlock` turns into the plain import and
    `class FooBlock(GradientCheckpointingLayer, Block)`.
    """
    alias = alias_of(tree, owner.path, ref.name)
    if alias is None:
        return ()
    derived = DeriveImportedLayer(owner.path, alias.span, None, alias.name, alias.original)
    return (*layer_import(tree, owner.path), derived)


def alias_of(tree: SourceTree, path: str, name: str) -> Import | None:
    """The guarded import statement that brings a class in as `name`, where it brings in nothing else."""
    facts = tree.names.facts(path)
    imports = [item for item in facts.imports if item.guard] if facts else []
    alias = next((item for item in imports if item.name == name != item.original != ""), None)
    return alias if alias and sum(item.span == alias.span for item in imports) == 1 else None


def derive(
    tree: SourceTree, owner: ClassRef, paths: tuple[AttributePath, ...], ref: ClassRef
) -> tuple[SourceRepair, ...]:
    """A subclass of `ref` that is a layer, made for one stack: elsewhere `ref` stands inside other blocks."""
    derived = family_facts(owner.path).derived
    attribute = next((path[0] for path in paths if path and path[0] in derived), None)
    if attribute is None or ref.path != owner.path:
        return ()
    name = derived[attribute]
    docstring = f"A [`{ref.name}`] that is a block of its own in `{owner.name}`."
    base = tree.places(ref.path).cls(ref.cls)
    repairs: list[SourceRepair] = [*layer_import(tree, ref.path), DeriveLayer(ref.path, None, base, name, docstring)]
    for _, built in tree.bases.attribute(owner, attribute):
        spans = [item.span for item in built.items if item.name == ref.name and item.span]
        repairs += [name_repair(tree, owner.path, span, name) for span in spans]
    return tuple(repairs)
