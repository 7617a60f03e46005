"""Making a plain class a checkpointing layer: which class to change, the import, and what else has to change with it.

Shared by the rule that finds plain blocks and the one that removes inline branches.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from ckpt_surgery.codemods.facts.syntax import Span
from ckpt_surgery.codemods.providers.old_switches import OLD_SWITCH
from ckpt_surgery.codemods.providers.own_switches import OWN_SWITCHES
from ckpt_surgery.codemods.repair import MakeLayer, SourceRepair
from ckpt_surgery.codemods.repairs.layer_import import layer_import
from ckpt_surgery.codemods.repairs.old_switches import old_switches, without_switch
from ckpt_surgery.codemods.tree.arguments import ArgumentPlan, ArgumentRepair
from ckpt_surgery.codemods.tree.classes import MODULES, Answer, ClassRef
from ckpt_surgery.codemods.tree.side_effects import Kept, NeededCache, kept_value, needed_cache
from ckpt_surgery.codemods.tree.source_tree import SourceTree
from ckpt_surgery.codemods.tree.switches import MissingSwitch
from ckpt_surgery.model_patches.release_names import LAYER_CLASS


class RefusalReason(Enum):
    """Why a class is not made a layer."""

    UNKNOWN_BASES = "unknown bases"
    """The class has bases outside the files at hand."""
    NOT_CHECKED = "not checked"
    """The class to change is in a file that is not checked."""


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


@dataclass(frozen=True, slots=True)
class CallDoubt:
    """A new layer of which no call was found."""

    layer: str


@dataclass(frozen=True, slots=True)
class UnpackedDoubt:
    """A call that unpacks tensors with gradient as keywords of a new layer."""

    caller: str
    layer: str
    argument: str


@dataclass(frozen=True, slots=True)
class ContainerDoubt:
    """Tensors with gradient inside containers, on their way into a new layer or, without a caller, out of it."""

    layer: str
    caller: str = ""


@dataclass(frozen=True, slots=True)
class DisabledDoubt:
    """A method that calls a new layer, and in which a checkpoint call is commented out: perhaps on purpose."""

    caller: str
    method: str
    layer: str


class WayRound(Enum):
    """What would lead round a new layer, or stop it."""

    CALL = "call"
    """The block has a `__call__` of its own: that of a layer up to transformers 5.0 would never run."""
    SUBCLASS = "subclass"
    """A base has an `__init_subclass__` of its own: that of later layers would never run."""
    FORWARD = "forward"
    """The block assigns its own `forward`, which no layer wraps."""
    FLAG = "flag"
    """The block switches `gradient_checkpointing` by itself, without the function that checkpoints."""
    ORDER = "order"
    """A class names the layer in front of the block among its bases: Python would find no order of both."""


_METHODS = {"__call__": WayRound.CALL, "__init_subclass__": WayRound.SUBCLASS}
_ASSIGNED = re.compile(r"\bself\.forward\s*=[^=]")
_DISABLED = re.compile(r"^[ \t]*#.*(?:gradient_checkpointing_func|(?<!\w)checkpoint)\(", re.M)
"""A line of code with a checkpoint call that is a comment."""


@dataclass(frozen=True, slots=True)
class WayRoundDoubt:
    """A new layer that would not checkpoint, or not even be imported: why, and the class that shows it."""

    reason: WayRound
    name: str


Doubt = (
    PastStateDoubt
    | UnpackedDoubt
    | ContainerDoubt
    | SwitchDoubt
    | CallDoubt
    | DisabledDoubt
    | WayRoundDoubt
    | Kept
    | NeededCache
)


@dataclass(frozen=True, slots=True)
class Conversion:
    """The repairs that make a class a layer, none where it is one. With a doubt they are not safe."""

    repairs: tuple[SourceRepair, ...] = ()
    doubt: Doubt | None = None


def convert(
    tree: SourceTree, ref: ClassRef, repairs: Collection[ArgumentRepair], *, recomputed: bool = False
) -> Conversion | Refusal | MissingSwitch:
    """Make `ref` a GradientCheckpointingLayer, in the class of its base chain that is a plain module.

    `repairs` are those that this run makes to the arguments of calls. `recomputed` says that the class is checkpointed
    already, in the mode that it will have: what it keeps beside its result is recomputed as it was.
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
    missing = next(filter(None, map(tree.switches.of_layer, twins)), None)
    if missing:
        return missing
    made: list[SourceRepair] = [
        repair for twin in twins for repair in (*layer_import(tree, twin.path), _layer(tree, twin))
    ]
    layers = dict.fromkeys(layer for twin in twins for layer in (twin, *tree.bases.heirs(twin)))
    for model in old_switches(tree, layers):
        if (switch := model.cls[OLD_SWITCH]) and not switch.only_flags:
            return Conversion(tuple(made), SwitchDoubt(model.name))
        made.append(without_switch(tree, model))
    return Conversion(tuple(made), _doubt(tree, layers, repairs, recomputed=recomputed))


def _doubt(
    tree: SourceTree, layers: Collection[ClassRef], repairs: Collection[ArgumentRepair], *, recomputed: bool
) -> Doubt | None:
    return (
        _way_round(tree, layers)
        or _past_state(tree, layers, repairs)
        or _unpacked(tree, layers)
        or _disabled(tree, layers)
        or (None if recomputed else _containers(tree, layers))
        or _side_effect(tree, layers, recomputed=recomputed)
    )


def _side_effect(tree: SourceTree, layers: Collection[ClassRef], *, recomputed: bool) -> Kept | NeededCache | None:
    """What the first of the new layers does that does not go with a recompute, or with a cache that is cleared."""
    for layer in layers:
        found = (None if recomputed else kept_value(tree, layer)) or needed_cache(tree, layer)
        if found:
            return found
    return None


def _way_round(tree: SourceTree, layers: Collection[ClassRef]) -> WayRoundDoubt | None:
    """The first class of the new layers, or among their bases, that leads round the layer."""
    for layer in layers:
        at = next((at for at, base in enumerate(layer.cls.bases) if base.rpartition(".")[2] == LAYER_CLASS), None)
        if at is not None and any(ref.name in layer.cls.bases[at + 1 :] for ref in layers):
            return WayRoundDoubt(WayRound.ORDER, layer.name)
        if layer.cls[OWN_SWITCHES]:
            return WayRoundDoubt(WayRound.FLAG, layer.name)
        for ref in tree.bases.lineage(layer):
            names = {method.name for method in ref.cls.methods}
            found = next((reason for method, reason in _METHODS.items() if method in names), None)
            if found is None and _ASSIGNED.search(tree.source(ref.path).of(ref.cls.span)):
                found = WayRound.FORWARD
            if found:
                return WayRoundDoubt(found, ref.name)
    return None


def _past_state(
    tree: SourceTree, layers: Collection[ClassRef], repairs: Collection[ArgumentRepair]
) -> PastStateDoubt | None:
    """The first call of the new layers that passes past state by position after all safe repairs."""
    for layer in layers:
        for owner, call in tree.blocks.callers.get(layer, ()):
            site = tree.calls.of(owner, call, layers)
            plan = tree.calls.plan_of_past_state(site, repairs) if site else None
            if plan and not plan.is_safe:
                return PastStateDoubt(owner.name, layer.name, plan)
    return None


def _unpacked(tree: SourceTree, layers: Collection[ClassRef]) -> UnpackedDoubt | None:
    """The first call of the new layers that unpacks tensors with gradient."""
    for layer in layers:
        for owner, call in tree.blocks.callers.get(layer, ()):
            argument = tree.calls.unpacked(owner, call)
            if argument:
                return UnpackedDoubt(owner.name, layer.name, argument)
    return None


def _containers(tree: SourceTree, layers: Collection[ClassRef]) -> ContainerDoubt | None:
    """The first of the new layers that is given tensors with gradient in containers, or returns them so."""
    for layer in layers:
        forward = tree.bases.forward(layer)
        if forward and (forward[1].nested_returns or forward[1].returns_mapping):
            return ContainerDoubt(layer.name)
        for owner, call in tree.blocks.callers.get(layer, ()):
            site = tree.calls.of(owner, call, layers)
            if site and tree.calls.plan(site).containers:
                return ContainerDoubt(layer.name, owner.name)
    return None


def _disabled(tree: SourceTree, layers: Collection[ClassRef]) -> DisabledDoubt | None:
    """The first method that calls one of the new layers and in which a checkpoint call is commented out."""
    for layer in layers:
        for owner, call in tree.blocks.callers.get(layer, ()):
            source = tree.source(owner.path)
            methods = (method for method in owner.cls.methods if method.name == call.method)
            texts = (source.of(Span(method.first_line, 0, method.end_line, 0)) for method in methods)
            if any("checkpoint" in text and _DISABLED.search(text) for text in texts):
                return DisabledDoubt(owner.name, call.method, layer.name)
    return None


def _names_module(ref: ClassRef) -> bool:
    return any(base in MODULES for base in ref.cls.bases)


def _root(tree: SourceTree, ref: ClassRef) -> ClassRef | None:
    """The class to change: the one that names nn.Module, where all that inherit from it are blocks.

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


def _layer(tree: SourceTree, root: ClassRef) -> MakeLayer:
    """The class as a layer. What changes is its base, or the place in front of its first one."""
    spans = zip(root.cls.bases, root.cls.base_spans, strict=True)
    first = root.cls.base_spans[0]
    front = Span(first.line, first.column, first.line, first.column)
    span = next((span for base, span in spans if base in MODULES), front)
    return MakeLayer(root.path, span, tree.places(root.path).cls(root.cls))
