"""Making a plain class a checkpointing layer: which class to edit, its new bases, the import.

Shared by the rule that finds plain blocks and the one that takes inline branches away.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ckpt_surgery.codemods.context import Context
from ckpt_surgery.codemods.edits.imports import import_edit
from ckpt_surgery.codemods.finding import Edit
from ckpt_surgery.codemods.rules import positional_past_state
from ckpt_surgery.codemods.tree.call_sites import site_of
from ckpt_surgery.codemods.tree.classes import GCL, Answer, Ref

_MODULES = ("nn.Module", "torch.nn.Module", "Module")


@dataclass(frozen=True, slots=True)
class Conversion:
    """The edits that make a class a layer, or the reason why none are known."""

    edits: tuple[Edit, ...] = ()
    reason: str = ""
    doubt: str = ""
    """Why the edits are not safe; empty where they are."""


def convert(context: Context, ref: Ref) -> Conversion:
    """Make `ref` a GradientCheckpointingLayer, in the class of its base chain that is a plain module."""
    answer = context.tree.is_layer(ref)
    if answer is Answer.YES:
        return Conversion()
    root = _root(context, ref)
    if root is None or answer is Answer.UNKNOWN:
        return Conversion(reason=f"the base classes of {ref.name} are not in the files at hand")
    if root.path not in context.tree.checked:
        return Conversion(reason=f"{root.name} is defined in {root.path}, which is not among the checked files")
    twins = [
        one
        for one in context.lineages.same(root)
        if one is root or (_names_module(one) and one.path in context.tree.checked)
    ]
    edits = [edit for one in twins for edit in (*imported(context, one.path), _bases(context, one))]
    layers = dict.fromkeys(layer for one in twins for layer in (one, *context.tree.heirs(one)))
    return Conversion(tuple(edits), doubt=_doubt(context, layers))


def _doubt(context: Context, layers: Collection[Ref]) -> str:
    """Whether a call of the new layers passes past state by position, and no safe repair makes it a keyword."""
    for layer in layers:
        for owner, call in context.blocks.callers.get(layer, ()):
            site = site_of(context, owner, call, layers)
            plan = positional_past_state.lasting(context, site) if site else None
            if plan:
                names = " and ".join(f"`{name}`" for name in plan.positional_past)
                passed = f"{owner.name} passes {names} to {layer.name} by position, which"
                if plan.blocked:
                    return f"{passed} only CKPT005 can change, a repair that is unsafe too"
                return f"{passed} is left to a person: {plan.unknown}"
    return ""


def _names_module(ref: Ref) -> bool:
    return any(base in _MODULES for base in ref.cls.bases)


def imported(context: Context, path: str) -> tuple[Edit, ...]:
    """The edit that imports the layer class into a file, or nothing where it is imported already."""
    facts = context.tree.facts(path)
    if facts is None:
        return ()
    edit = import_edit(path, facts, context.source(path), context.width)
    return (edit,) if edit else ()


def _root(context: Context, ref: Ref) -> Ref | None:
    """The class to edit: the one that names nn.Module, where all that inherit from it are blocks.

    Otherwise the class itself, with the layer in front of a base that stays what it is.
    """
    root = next((ancestor for ancestor in context.tree.lineage(ref) if _names_module(ancestor)), None)
    if root is ref:
        return ref
    if root is not None and all(_may_be_layer(context, one) for one in context.tree.heirs(root)):
        return root
    return ref if context.tree.is_module(ref) and ref.cls.bases else None


def _may_be_layer(context: Context, ref: Ref) -> bool:
    """A block or layer, or a class that nothing holds."""
    if ref in context.blocks.plain or context.tree.is_layer(ref) is Answer.YES:
        return True
    return ref.name not in context.tree.holders


def _bases(context: Context, root: Ref) -> Edit:
    source = context.source(root.path)
    for base, span in zip(root.cls.bases, root.cls.base_spans, strict=True):
        if base in _MODULES:
            return Edit(root.path, *source.range(span), GCL)
    start, _ = source.range(root.cls.base_spans[0])
    return Edit(root.path, start, start, f"{GCL}, ")
