"""Turn a plain class into a checkpointing layer: the class to change, the import, and what has to change with it.

Methods that keep newer releases from switching layers on are removed. A class that must stay plain, because it is
imported or also used elsewhere, gets a layer class beside it. Doubts come with the repairs: values that a block keeps,
past state that it needs, outputs that models read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

from ckpt_surgery.codemods.facts.argument_names import is_past_state
from ckpt_surgery.codemods.facts.cache_reads import cache_reads
from ckpt_surgery.codemods.facts.file_facts import AttributePath, ForwardSignature, ModuleCall
from ckpt_surgery.codemods.facts.kept_values import ValueFlow, kept_values
from ckpt_surgery.codemods.facts.syntax import Span
from ckpt_surgery.codemods.providers.switches import OLD_SWITCH, OWN_SWITCHES
from ckpt_surgery.codemods.repair import DeriveImportedLayer, DeriveLayer, DropMethod, MakeLayer, SourceRepair
from ckpt_surgery.codemods.repairs.calls import layer_import, name_repair
from ckpt_surgery.codemods.tree.arguments import ArgumentRepair, given_arguments
from ckpt_surgery.codemods.tree.classes import MODULES, Answer, ClassRef
from ckpt_surgery.codemods.tree.source_tree import SourceTree
from ckpt_surgery.codemods.wording import Because, WordedReason, quoted
from ckpt_surgery.model_patches import family_facts
from ckpt_surgery.model_patches.release_names import CACHE_SWITCH, LAYER_CLASS


class Doubt(WordedReason):
    """The reasons why a class is not made a layer, or not safely."""

    UNKNOWN_BASES = "the base classes of {} are not in the files at hand"
    NOT_CHECKED = "{} is defined in {}, which is not among the checked files"
    SWITCH = "{}._set_gradient_checkpointing reaches no layer, and does more: take it out by hand first"
    OWN_METHOD = "{} has a `{}` of its own, which would bypass the layer's"
    OWN_FORWARD = "{} assigns its own `forward`, which no layer would checkpoint"
    OWN_FLAG = "{} sets `gradient_checkpointing` itself, and a layer then asks for a function that it lacks"
    ORDER = "{} names the layer in front of it among its bases: take that out first"
    PAST_STATE = "{} passes {} to {} by position, which is not repaired: {}"
    SIGNATURE = "{} passes {} to {} by position, which only CKPT005 can change, which is unsafe as well"
    UNPACKED = "{} gives {} tensors with gradient by `{}`: pass them by position"
    DISABLED = "a checkpoint call is commented out in {}: see why before {} is checkpointed"
    RETURNS_CONTAINER = "{} returns tensors inside a container: with use_reentrant=True their gradient is lost"
    TAKES_CONTAINER = "{} gives {} tensors with gradient inside a container (CKPT007)"
    KEPT_GRADIENT = (
        "{} keeps a tensor in `{}`, whose gradient is lost with use_reentrant=True, and keeps it again in the "
        "recompute: return it"
    )
    KEPT_STATE = "{} depends on `{}` and changes it: the recompute would not find it as the forward did"
    NEEDED_CACHE = "{} reads `{}` without asking whether it is None, and a layer sets it to None in training"
    SHARED_CACHE = "{} takes from `{}` what another block put there, and a layer sets it to None in training"
    ELSEWHERE = "{} checkpoints, and reads `{}` of another object: see that {} is not checkpointed twice"
    MORE_OUTPUTS = (
        "{0} reads more outputs of {1} where `{2}` is True, and a layer sets its own `use_cache` to False: first add "
        "`{2} = False` under `if self.gradient_checkpointing and self.training` to that method"
    )
    NO_CALL = "no call of {} was found: see that gradient tensors reach it by position"


_ASSIGNED = re.compile(r"\bself\.forward\s*=[^=]")
_DISABLED = re.compile(r"^[ \t]*#.*(?:gradient_checkpointing_func|(?<!\w)checkpoint)\(", re.M)
"""A commented-out line with a checkpoint call."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """The repairs that turn plain classes into layers, or replace a branch by layers, and why they are not safe.

    Both are empty for a class that is a layer already. A reason without a repair means that a branch stays.
    """

    repairs: tuple[SourceRepair, ...] = ()
    reasons: tuple[Because, ...] = ()


def convert(
    tree: SourceTree, ref: ClassRef, repairs: Collection[ArgumentRepair], *, recomputed: bool = False
) -> Conversion | Because:
    """Return the repairs that make a class, or the plain module that it derives from, a GradientCheckpointingLayer.

    Args:
        tree: the tree of files.
        ref: the class.
        repairs: what this run repairs about call arguments.
        recomputed: whether the class is checkpointed already, in the mode that the layer will use: then what it keeps
            besides its result is recomputed as before, and no reason for doubt.

    Returns:
        The repairs, with a reason if they are not safe; or why the class is not made a layer.
    """
    answer = tree.bases.is_layer(ref)
    if answer is Answer.YES:
        return Conversion()
    root = _root(tree, ref)
    if root is None or answer is Answer.UNKNOWN:
        return Doubt.UNKNOWN_BASES.about(ref.name)
    if root.path not in tree.checked:
        return Doubt.NOT_CHECKED.about(root.name, root.path)
    twins = [
        twin for twin in tree.lineages.same(root) if twin is root or (twin.names_module and twin.path in tree.checked)
    ]
    missing = next(filter(None, map(tree.switches.of_layer, twins)), None)
    if missing:
        return missing
    made: list[SourceRepair] = []
    for twin in twins:
        start = twin.cls.base_spans[0][:2]
        bases = zip(twin.cls.bases, twin.cls.base_spans, strict=True)
        span = next((span for base, span in bases if base in MODULES), Span(*start, *start))  # else before the first
        target = tree.places(twin.path).definition(twin.cls.span)
        made += [*layer_import(tree, twin.path), MakeLayer(twin.path, span, target)]
    layers = dict.fromkeys(layer for twin in twins for layer in (twin, *tree.bases.heirs(twin)))
    for model in _old_switches(tree, layers):
        if (switch := model.cls[OLD_SWITCH]) and not switch.only_flags:
            return Conversion(tuple(made), (Doubt.SWITCH.about(model.name),))
        made.append(without_switch(tree, model))
    return Conversion(tuple(made), tuple(islice(_doubts(tree, layers, repairs, recomputed=recomputed), 1)))


def _doubts(
    tree: SourceTree, layers: Collection[ClassRef], repairs: Collection[ArgumentRepair], *, recomputed: bool
) -> Iterator[Because]:
    for layer in layers:
        bases = [base.rpartition(".")[2] for base in layer.cls.bases]
        after = layer.cls.bases[bases.index(LAYER_CLASS) + 1 :] if LAYER_CLASS in bases else ()
        if any(ref.name in after for ref in layers):
            yield Doubt.ORDER.about(layer.name)
        if layer.cls[OWN_SWITCHES]:
            yield Doubt.OWN_FLAG.about(layer.name)
        for ref in tree.bases.lineage(layer):
            names = [method.name for method in ref.cls.methods if method.name in ("__call__", "__init_subclass__")]
            yield from (Doubt.OWN_METHOD.about(ref.name, name) for name in names)
            if _ASSIGNED.search(tree.source(ref.path).of(ref.cls.span)):
                yield Doubt.OWN_FORWARD.about(ref.name)
    calls = [(layer, owner, call) for layer in layers for owner, call in tree.blocks.callers.get(layer, ())]
    for layer, owner, call in calls:
        site = tree.calls.of(owner, call, layers)
        plan = tree.calls.plan_of_past_state(site, repairs) if site else None
        if plan and not plan.is_safe:
            passed = (owner.name, quoted(plan.positional_past), layer.name)
            why = plan.unknown.text if plan.unknown else "a parameter in between has no default"
            yield Doubt.SIGNATURE.about(*passed) if plan.blocked else Doubt.PAST_STATE.about(*passed, why)
    for layer, owner, call in calls:
        argument = tree.calls.unpacked(owner, call)
        if argument:
            yield Doubt.UNPACKED.about(owner.name, layer.name, argument)
    for layer in layers:
        yield from commented_out(tree, layer)
    for layer in () if recomputed else layers:
        forward = tree.bases.forward(layer)
        if forward and (forward[1].nested_returns or forward[1].returns_mapping):
            yield Doubt.RETURNS_CONTAINER.about(layer.name)
        for owner, call in tree.blocks.callers.get(layer, ()):
            site = tree.calls.of(owner, call, layers)
            if site and tree.calls.plan(site).containers:
                yield Doubt.TAKES_CONTAINER.about(owner.name, layer.name)
    for layer in layers:
        if not recomputed and (kept := _kept_value(tree, layer)):
            yield kept
        if needed := _needed_cache(tree, layer):
            yield needed


def _kept_value(tree: SourceTree, block: ClassRef) -> Because | None:
    """Find a value that a block or a part of it keeps besides its result, preferably one with its gradient."""
    kept = [
        (value, ref)
        for ref in tree.containers.block_and_parts(block)
        for value in kept_values(tree.method_nodes(ref), partial(tree.function_node, ref.path), is_block=ref is block)
    ]
    if not kept:
        return None
    value, ref = min(kept, key=lambda pair: -pair[0].flow)
    reason = Doubt.KEPT_GRADIENT if value.flow is ValueFlow.GRADIENT else Doubt.KEPT_STATE
    return reason.about(f"{ref.name}.{value.method}", value.target)


def _needed_cache(tree: SourceTree, block: ClassRef) -> Because | None:
    """Find the first read of past state that fails, or reads something else, once a layer clears it."""
    cleared = tree.bases.parameter_names(block) & set(tree.layers.cleared(block.path)) - {CACHE_SWITCH}
    for ref in tree.containers.block_and_parts(block) if cleared else ():
        names = cleared if ref is block else set(filter(is_past_state, tree.bases.parameter_names(ref)))
        for read in cache_reads(tree.method_nodes(ref), names) if names else ():
            reason = Doubt.SHARED_CACHE if read.shared else Doubt.NEEDED_CACHE
            return reason.about(f"{ref.name}.{read.method}", read.name)
    return None


def failing_read(tree: SourceTree, ref: ClassRef) -> Because | None:
    """Find the first read of outputs that fails once `ref` is a layer, because it then returns fewer of them."""
    # classes that may become layers with it: copies, subclasses, and those with the same base
    twins = (twin for base in tree.bases.lineage(ref) for twin in tree.lineages.same(base))
    kin = [other for twin in twins for other in (twin, *tree.bases.heirs(twin)) if tree.blocks.checkpoints(other)]
    for layer in dict.fromkeys([ref, *kin]):
        forward = tree.bases.forward(layer)
        for owner, call in tree.blocks.callers.get(layer, ()) if forward else ():
            switch = _cleared_switch(tree, owner, call, forward[1]) if forward and call.reads_more_under else ""
            if switch in call.reads_more_under and CACHE_SWITCH in tree.layers.cleared(layer.path):
                return Doubt.MORE_OUTPUTS.about(f"{owner.name}.{call.method}", layer.name, switch)
    return None


def _cleared_switch(tree: SourceTree, owner: ClassRef, call: ModuleCall, forward: ForwardSignature) -> str:
    """Return what a call passes as `use_cache` by keyword, now or once repaired: a layer clears it there."""
    argument = next((argument for argument in call.args if argument.name == CACHE_SWITCH), None)
    if argument is None:
        site, given = tree.calls.of_any(owner, call), given_arguments(call.args, forward) or {}
        repaired = tree.calls.plan(site).arguments if site else None
        argument = given.get(CACHE_SWITCH) if any(new.keyword == CACHE_SWITCH for new in repaired or ()) else None
    return argument.text if argument and argument.is_value else ""


def commented_out(tree: SourceTree, layer: ClassRef) -> Iterator[Because]:
    """Yield a doubt for each method that calls a block and contains a commented-out checkpoint call."""
    for owner, call in tree.blocks.callers.get(layer, ()):
        source, methods = tree.source(owner.path), owner.cls.methods
        lines = [Span(each.first_line, 0, each.end_line, 0) for each in methods if each.name == call.method]
        if any(_DISABLED.search(text) for text in map(source.of, lines) if "checkpoint" in text):
            yield Doubt.DISABLED.about(f"{owner.name}.{call.method}", layer.name)


def _root(tree: SourceTree, ref: ClassRef) -> ClassRef | None:
    """Find the class to change: the base that names nn.Module, if all its subclasses are blocks or held by nothing.

    Otherwise it is the class itself, which gets the layer in front of a base that stays plain.
    """
    root = next((ancestor for ancestor in tree.bases.lineage(ref) if ancestor.names_module), None)
    if root is ref:
        return ref
    heirs = tree.bases.heirs(root) if root else ()
    if root and all(tree.blocks.checkpoints(heir) or heir.name not in tree.containers.holders for heir in heirs):
        return root
    return ref if tree.bases.is_module(ref) and ref.cls.bases else None


def _old_switches(tree: SourceTree, layers: Collection[ClassRef]) -> Iterator[ClassRef]:
    """Yield the models of transformers with an old switch in the files of these layers and of their callers."""
    owners = {owner for layer in layers for owner, _ in tree.blocks.callers.get(layer, ())}
    paths = {layer.path for layer in layers} | {owner.path for owner in owners}
    paths |= {base.path for owner in owners for base in tree.bases.lineage(owner)}
    models = (ref for path in sorted(paths.intersection(tree.checked)) for ref in tree.names.classes(path))
    return (ref for ref in models if ref.cls[OLD_SWITCH] and tree.bases.serves_pretrained(ref))


def without_switch(tree: SourceTree, ref: ClassRef) -> DropMethod:
    """Return the repair that drops the old switch of a class."""
    switch = ref.cls[OLD_SWITCH]
    assert switch is not None
    span = switch.span._replace(line=switch.first_line)
    return DropMethod(ref.path, span, tree.places(ref.path).definition(switch.span))


def aliased(tree: SourceTree, owner: ClassRef, ref: ClassRef) -> tuple[SourceRepair, ...]:
    """Return the repairs that make a layer of a block that an availability guard imports under another name.

    `from package import Block as FooBlock` beside `class FooBlock` turns into the plain import and
    `class FooBlock(GradientCheckpointingLayer, Block)`.
    """
    alias = tree.names.guarded_alias(owner.path, ref.name)
    if alias is None:
        return ()
    derived = DeriveImportedLayer(owner.path, alias.span, None, alias.name, alias.original)
    return (*layer_import(tree, owner.path), derived)


def derive(
    tree: SourceTree, owner: ClassRef, paths: tuple[AttributePath, ...], ref: ClassRef
) -> tuple[SourceRepair, ...]:
    """Return the repairs that give one stack a layer subclass of `ref`, which stays plain inside other blocks."""
    derived = family_facts(owner.path).derived
    attribute = next((path[0] for path in paths if path and path[0] in derived), None)
    if attribute is None or ref.path != owner.path:
        return ()
    name = derived[attribute]
    docstring = f"A [`{ref.name}`] that is a block of its own in `{owner.name}`."
    base = tree.places(ref.path).definition(ref.cls.span)
    repairs: list[SourceRepair] = [*layer_import(tree, ref.path), DeriveLayer(ref.path, None, base, name, docstring)]
    for _, built in tree.bases.attribute(owner, attribute):
        spans = [item.span for item in built.items if item.name == ref.name and item.span]
        repairs += [name_repair(tree, owner.path, span, name) for span in spans]
    return tuple(repairs)
