"""Making a plain class a checkpointing layer: which class to edit, its new bases, the import.

Shared by the rule that finds plain blocks and the one that removes inline branches.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from ckpt_surgery.codemods.edits.imports import import_edit
from ckpt_surgery.codemods.edits.switch_removal import old_switches, without_switch
from ckpt_surgery.codemods.finding import Edit
from ckpt_surgery.codemods.tree.arguments import ArgumentPlan, ArgumentRepair
from ckpt_surgery.codemods.tree.classes import GCL, Answer, ClassRef
from ckpt_surgery.codemods.tree.source_tree import SourceTree

_MODULES = ("nn.Module", "torch.nn.Module", "Module")


class RefusalReason(Enum):
    """Why a class is not made a layer."""

    UNKNOWN_BASES = "unknown bases"
    """The class has bases outside the files at hand."""
    NOT_CHECKED = "not checked"
    """The class to edit is in a file that is not checked."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A class that is not made a layer: why, and the class (and its file) that this is about."""

    reason: RefusalReason
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PastStateDoubt:
    """A call that passes past state by position to a new layer, and that no safe repair puts right."""

    caller: str
    layer: str
    plan: ArgumentPlan


@dataclass(frozen=True, slots=True)
class SwitchDoubt:
    """A model's own method to switch checkpointing on, which reaches no layer, and does more than that."""

    model: str


Doubt = PastStateDoubt | SwitchDoubt


@dataclass(frozen=True, slots=True)
class Conversion:
    """The edits that make a class a layer, none where it is one. With a doubt they are not safe."""

    edits: tuple[Edit, ...] = ()
    doubt: Doubt | None = None


def convert(tree: SourceTree, ref: ClassRef, repairs: Collection[ArgumentRepair]) -> Conversion | Refusal:
    """Make `ref` a GradientCheckpointingLayer, in the class of its base chain that is a plain module.

    `repairs` are those that this run makes to the arguments of calls.
    """
    answer = tree.bases.is_layer(ref)
    if answer is Answer.YES:
        return Conversion()
    root = _root(tree, ref)
    if root is None or answer is Answer.UNKNOWN:
        return Refusal(RefusalReason.UNKNOWN_BASES, (ref.name,))
    if root.path not in tree.checked:
        return Refusal(RefusalReason.NOT_CHECKED, (root.name, root.path))
    twins = [
        twin
        for twin in tree.lineages.same(root)
        if twin is root or (_names_module(twin) and twin.path in tree.checked)
    ]
    edits = [edit for twin in twins for edit in (*layer_import(tree, twin.path), _bases(tree, twin))]
    layers = dict.fromkeys(layer for twin in twins for layer in (twin, *tree.bases.heirs(twin)))
    for model in old_switches(tree, layers):
        if model.cls.old_switch and not model.cls.old_switch.only_flags:
            return Conversion(tuple(edits), SwitchDoubt(model.name))
        edits.append(without_switch(tree, model))
    return Conversion(tuple(edits), _doubt(tree, layers, repairs))


def _doubt(
    tree: SourceTree, layers: Collection[ClassRef], repairs: Collection[ArgumentRepair]
) -> PastStateDoubt | None:
    """The first call of the new layers that passes past state by position after all safe repairs."""
    for layer in layers:
        for owner, call in tree.blocks.callers.get(layer, ()):
            site = tree.calls.of(owner, call, layers)
            plan = tree.calls.plan_of_past_state(site, repairs) if site else None
            if plan and plan.repair is None:
                return PastStateDoubt(owner.name, layer.name, plan)
    return None


def _names_module(ref: ClassRef) -> bool:
    return any(base in _MODULES for base in ref.cls.bases)


def layer_import(tree: SourceTree, path: str) -> tuple[Edit, ...]:
    """The edit that imports the layer class into a file, or nothing where it is imported already."""
    facts = tree.names.facts(path)
    if facts is None:
        return ()
    edit = import_edit(path, facts, tree.source(path), tree.width)
    return (edit,) if edit else ()


def _root(tree: SourceTree, ref: ClassRef) -> ClassRef | None:
    """The class to edit: the one that names nn.Module, where all that inherit from it are blocks.

    Otherwise the class itself, with the layer in front of a base that stays what it is.
    """
    root = next((ancestor for ancestor in tree.bases.lineage(ref) if _names_module(ancestor)), None)
    if root is ref:
        return ref
    if root is not None and all(_may_be_layer(tree, heir) for heir in tree.bases.heirs(root)):
        return root
    return ref if tree.bases.is_module(ref) and ref.cls.bases else None


def _may_be_layer(tree: SourceTree, ref: ClassRef) -> bool:
    """Whether it is a block or a layer, or nothing holds it."""
    return tree.blocks.checkpoints(ref) or ref.name not in tree.containers.holders


def _bases(tree: SourceTree, root: ClassRef) -> Edit:
    source = tree.source(root.path)
    for base, span in zip(root.cls.bases, root.cls.base_spans, strict=True):
        if base in _MODULES:
            return Edit(root.path, *source.range(span), GCL)
    start, _ = source.range(root.cls.base_spans[0])
    return Edit(root.path, start, start, f"{GCL}, ")
