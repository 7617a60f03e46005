"""The words for what trees and repairs report to the rules: the one place where refusals and doubts become text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ckpt_surgery.codemods.facts.cache_reads import ReadKind
from ckpt_surgery.codemods.facts.kept_values import ValueFlow
from ckpt_surgery.codemods.finding import Because
from ckpt_surgery.codemods.repairs.conversion import (
    CallDoubt,
    ContainerDoubt,
    DisabledDoubt,
    Doubt,
    Refusal,
    RefusalReason,
    SwitchDoubt,
    UnpackedDoubt,
    WayRound,
    WayRoundDoubt,
)
from ckpt_surgery.codemods.tree.arguments import Unknown, UnknownReason
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.tree.output_reads import OutputRead
from ckpt_surgery.codemods.tree.side_effects import Kept, NeededCache
from ckpt_surgery.codemods.tree.switches import Missing, MissingSwitch
from ckpt_surgery.text import listed

AnyReason = Because | Refusal | Doubt | MissingSwitch | OutputRead

_REFUSALS: Mapping[RefusalReason, str] = {
    RefusalReason.UNKNOWN_BASES: "the base classes of {} are not in the files at hand",
    RefusalReason.NOT_CHECKED: "{} is defined in {}, which is not among the checked files",
}
_WAYS_ROUND: Mapping[WayRound, str] = {
    WayRound.CALL: "{} has a `__call__` of its own, which would lead round the layer's: rename it first",
    WayRound.SUBCLASS: "{} has an `__init_subclass__` of its own, which would keep the layer's from running",
    WayRound.FORWARD: "{} assigns its own `forward`, which no layer would checkpoint",
    WayRound.FLAG: "{} sets `gradient_checkpointing` itself, and a layer then asks for a function that it lacks",
    WayRound.ORDER: "{} names the layer in front of it among its bases: take that out first",
}
_READS: Mapping[ReadKind, str] = {
    ReadKind.NEEDED: "{} reads `{}` without asking whether it is None, and a layer sets it to None in training",
    ReadKind.SHARED: "{} takes from `{}` what another block put there, and a layer sets it to None in training",
}
_MISSING: Mapping[Missing, str] = {
    Missing.RELEASE: (
        "the package asks for {}, and GradientCheckpointingLayer came with 4.52: checkpoint by an inline branch, or "
        "raise the requirement"
    ),
    Missing.TRANSFORMERS: (
        "nothing of transformers holds {}, so nothing would switch a layer's checkpointing on: an inline branch is "
        "the way to checkpoint there"
    ),
    Missing.MODEL: (
        "no model of transformers that holds {} and claims gradient checkpointing is among the files: see that one "
        "switches it on"
    ),
    Missing.FLAG: (
        "{} does not claim gradient checkpointing, so nothing would switch a layer on: first set "
        "`supports_gradient_checkpointing = True`"
    ),
    Missing.OWN_SWITCH: "{} switches its checkpointing by itself ({}), which would reach no layer",
}
_UNKNOWN: Mapping[UnknownReason, str] = {
    UnknownReason.UNPACKED: "an unpacked `*` argument may hold anything",
    UnknownReason.SURPLUS: "more positional arguments than the block's forward names",
    UnknownReason.SIGNATURES: "its blocks ({}) have different signatures",
}


def quoted(names: Iterable[str]) -> str:
    """The names as code: `a`, `b` and `c`."""
    return listed([f"`{name}`" for name in names])


def unknown_text(unknown: Unknown) -> str:
    """Why nobody can tell which argument reaches which parameter."""
    return _UNKNOWN[unknown.reason].format(", ".join(unknown.blocks))


def replaced_text(ref: ClassRef) -> str:
    """Why the forward that a class defines tells nothing."""
    return f"another forward is assigned to {ref.name}, which is not read"


def _missing_text(missing: MissingSwitch) -> str:
    """Why nothing would switch a layer on, and what to do about it."""
    if missing.reason is Missing.OWN_SWITCH:
        model, target, value = missing.names
        how = f"`{target} = {value}`" if value else f"`{target.removeprefix('self.')}`"
        return _MISSING[missing.reason].format(model, how)
    return _MISSING[missing.reason].format(*missing.names)


def _doubt_text(doubt: Doubt) -> str:
    """Why making a class a layer is not safe."""
    if isinstance(doubt, SwitchDoubt):
        return f"{doubt.model}._set_gradient_checkpointing reaches no layer, and does more: take it out by hand first"
    if isinstance(doubt, WayRoundDoubt):
        return _WAYS_ROUND[doubt.reason].format(doubt.name)
    if isinstance(doubt, DisabledDoubt):
        where = f"{doubt.caller}.{doubt.method}"
        return f"a checkpoint call is commented out in {where}: see why before {doubt.layer} is checkpointed"
    if isinstance(doubt, UnpackedDoubt):
        return f"{doubt.caller} gives {doubt.layer} tensors with gradient by `{doubt.argument}`: pass them by position"
    if isinstance(doubt, ContainerDoubt):
        if not doubt.caller:
            return f"{doubt.layer} returns tensors inside a container: with use_reentrant=True their gradient is lost"
        return f"{doubt.caller} gives {doubt.layer} tensors with gradient inside a container (CKPT007)"
    if isinstance(doubt, Kept):
        return _kept_text(doubt)
    if isinstance(doubt, NeededCache):
        return _READS[doubt.read.kind].format(f"{doubt.owner}.{doubt.read.method}", doubt.read.name)
    if isinstance(doubt, CallDoubt):
        return f"no call of {doubt.layer} was found: see that gradient tensors reach it by position"
    passed = f"{doubt.caller} passes {quoted(doubt.plan.positional_past)} to {doubt.layer} by position, which"
    if doubt.plan.blocked:
        return f"{passed} only CKPT005 can change, which is unsafe as well"
    why = unknown_text(doubt.plan.unknown) if doubt.plan.unknown else "a parameter in between has no default"
    return f"{passed} is not repaired: {why}"


def _kept_text(kept: Kept) -> str:
    """Why a block that keeps a value cannot be run a second time."""
    method, target = f"{kept.owner}.{kept.value.method}", kept.value.target
    if kept.value.flow is ValueFlow.GRADIENT:
        lost = "whose gradient is lost with use_reentrant=True, and keeps it again in the recompute: return it"
        return f"{method} keeps a tensor in `{target}`, {lost}"
    return f"{method} depends on `{target}` and changes it: the recompute would not find it as the forward did"


def reason_text(reason: AnyReason) -> str:
    """Return why something is not repaired, or not safe."""
    if isinstance(reason, Because):
        return reason.text
    if isinstance(reason, Refusal):
        return _REFUSALS[reason.reason].format(*reason.names)
    if isinstance(reason, MissingSwitch):
        return _missing_text(reason)
    return _read_text(reason) if isinstance(reason, OutputRead) else _doubt_text(reason)


def _read_text(read: OutputRead) -> str:
    """Why a model fails once its block is a layer, and what to do about it."""
    return (
        f"{read.caller}.{read.method} reads more outputs of {read.layer} where `{read.switch}` is True, and a layer "
        f"sets its own `use_cache` to False: first add `{read.switch} = False` under "
        "`if self.gradient_checkpointing and self.training` to that method"
    )
