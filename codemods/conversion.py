"""Making a plain class a checkpointing layer: which class to edit, its new bases, the import.

Shared by the rule that finds plain blocks and the one that takes inline branches away.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from codemods.facts import Import, Path
from codemods.finding import Edit
from codemods.imports import by_type, import_edit
from codemods.rule import Context
from codemods.tree_index import GCL, Answer, External, Ref
from model_patches import family_facts

_MODULES = ("nn.Module", "torch.nn.Module", "Module")


@dataclass(frozen=True, slots=True)
class Conversion:
    """The edits that make a class a layer, or the reason why none are known."""

    edits: tuple[Edit, ...] = ()
    reason: str = ""


def convert(context: Context, ref: Ref) -> Conversion:
    """Make `ref` a GradientCheckpointingLayer, in the class of its base chain that is a plain module."""
    answer = context.tree.is_layer(ref)
    if answer is Answer.YES:
        return Conversion()
    root = _root(context, ref)
    if root is None:
        return Conversion(reason=f"the base classes of {ref.name} are not in the files at hand")
    if root.path not in context.tree.checked:
        return Conversion(reason=f"{root.name} is defined in {root.path}, which is not among the checked files")
    edits: list[Edit] = []
    for one in (root, *_modular_twins(context, root)):
        edits += [*imported(context, one.path), _bases(context, one)]
    return Conversion(tuple(edits))


def _modular_twins(context: Context, root: Ref) -> Iterator[Ref]:
    """The class of the same name in the modular file that a generated file comes from: its true source."""
    facts = context.tree.facts(root.path)
    if facts is None or not facts.generated_from:
        return
    modular = os.path.join(os.path.dirname(root.path), facts.generated_from)
    for ref in context.tree.refs(modular) if modular in context.tree.checked else ():
        if ref.name == root.name and any(base in _MODULES for base in ref.cls.bases):
            yield ref


def imported(context: Context, path: str) -> tuple[Edit, ...]:
    """The edit that imports the layer class into a file, or nothing where it is imported already."""
    facts = context.tree.facts(path)
    if facts is None:
        return ()
    edit = import_edit(path, facts, context.source(path), context.width)
    return (edit,) if edit else ()


def _root(context: Context, ref: Ref) -> Ref | None:
    """The class to edit: the one that names nn.Module, or the class itself over a base from elsewhere."""
    for ancestor in context.tree.lineage(ref):
        if any(base in _MODULES for base in ancestor.cls.bases):
            return ancestor
    # A base from another package can be kept: the layer goes in front of it.
    return ref if any(isinstance(target, External) for target in context.tree.mro(ref)) and ref.cls.bases else None


def _bases(context: Context, root: Ref) -> Edit:
    source = context.source(root.path)
    start, end = source.range(root.cls.header)
    text = source.text[start:end]
    for base in _MODULES:
        if base in root.cls.bases:
            position = text.rindex(base)
            return Edit(root.path, start + position, start + position + len(base), GCL)
    position = text.index("(") + 1
    return Edit(root.path, start + position, start + position, f"{GCL}, ")


def aliased(context: Context, owner: Ref, ref: Ref) -> tuple[Edit, ...]:
    """A class that an availability guard imports under the block's name becomes a layer of that name.

    `from package import Block as FooBlock` beside `class FooBlock` turns into the plain import and
    `class FooBlock(GradientCheckpointingLayer, Block)`.
    """
    alias = alias_of(context, owner.path, ref.name)
    if alias is None:
        return ()
    imports = _guarded(context, owner.path)
    source = context.source(owner.path)
    start, end = source.range(alias.span)
    indent = source.indent(start)
    block = source.newline.join(
        [source.newline, f"{indent}class {alias.name}({GCL}, {alias.original}):", f"{indent}    pass"]
    )
    others = [item for item in imports if item.module == alias.module and item.name == item.original]
    guard_end = max(source.range(item.span)[1] for item in imports if item.guard == alias.guard)
    edits = list(imported(context, owner.path))
    if others:
        names = sorted({alias.original, *(item.original for item in others)}, key=by_type)
        low, high = source.range(others[0].span)
        edits.append(Edit(owner.path, source.line_start(start), source.line_end(end) + len(source.newline), ""))
        edits.append(Edit(owner.path, low, high, f"from {alias.module} import {', '.join(names)}"))
    else:
        edits.append(Edit(owner.path, start, end, f"from {alias.module} import {alias.original}"))
    edits.append(Edit(owner.path, guard_end, guard_end, block))
    return tuple(edits)


def alias_of(context: Context, path: str, name: str) -> Import | None:
    """The guarded import statement that brings a class in as `name`, where it brings in nothing else."""
    imports = _guarded(context, path)
    alias = next((item for item in imports if item.name == name != item.original != ""), None)
    return alias if alias and sum(item.span == alias.span for item in imports) == 1 else None


def _guarded(context: Context, path: str) -> list[Import]:
    facts = context.tree.facts(path)
    return [item for item in facts.imports if item.guard] if facts else []


def derive(context: Context, owner: Ref, paths: tuple[Path, ...], ref: Ref) -> tuple[Edit, ...]:
    """A subclass of `ref` that is a layer, made for one stack: elsewhere `ref` stands inside other blocks."""
    derived = family_facts(owner.path).derived
    name = next((derived[path[0]] for path in paths if path and path[0] in derived), None)
    if name is None or ref.path != owner.path:
        return ()
    attribute = next(path[0] for path in paths if path and path[0] in derived)
    source = context.source(ref.path)
    _, end = source.range(ref.cls.span)
    newline = source.newline
    doc = f'"""A [`{ref.name}`] that is a block of its own in `{owner.name}`."""'
    block = newline * 3 + f"class {name}({GCL}, {ref.name}):" + newline + f"    {doc}"
    edits = [*imported(context, ref.path), Edit(ref.path, end, end, block)]
    for _, built in context.tree.attribute(owner, attribute):
        for item in built.items:
            if item.name == ref.name and item.span:
                edits.append(Edit(owner.path, *source.range(item.span), name))
    return tuple(edits)
