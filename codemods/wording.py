"""The words for what trees and repairs report to the rules: the one place where refusals and doubts become text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ckpt_surgery.codemods.repairs.conversion import Doubt, DoubtReason, Refusal, RefusalReason
from ckpt_surgery.codemods.tree.arguments import ArgumentPlan, Unknown, UnknownReason
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.tree.output_reads import OutputRead
from ckpt_surgery.codemods.tree.switches import Missing, MissingSwitch
from ckpt_surgery.text import listed

_REFUSALS: Mapping[RefusalReason, str] = {
    RefusalReason.UNKNOWN_BASES: "the base classes of {} are not in the files at hand",
    RefusalReason.NOT_CHECKED: "{} is defined in {}, which is not among the checked files",
}
_DOUBTS: Mapping[DoubtReason, str] = {
    DoubtReason.SWITCH: "{}._set_gradient_checkpointing reaches no layer, and does more: take it out by hand first",
    DoubtReason.OWN_CALL: "{} has a `__call__` of its own, which would lead round the layer's: rename it first",
    DoubtReason.OWN_SUBCLASS: "{} has an `__init_subclass__` of its own, which would keep the layer's from running",
    DoubtReason.OWN_FORWARD: "{} assigns its own `forward`, which no layer would checkpoint",
    DoubtReason.OWN_FLAG: (
        "{} sets `gradient_checkpointing` itself, and a layer then asks for a function that it lacks"
    ),
    DoubtReason.ORDER: "{} names the layer in front of it among its bases: take that out first",
    DoubtReason.PAST_STATE: "{0} passes {2} to {1} by position, which {3}",
    DoubtReason.UNPACKED: "{} gives {} tensors with gradient by `{}`: pass them by position",
    DoubtReason.DISABLED: "a checkpoint call is commented out in {}: see why before {} is checkpointed",
    DoubtReason.RETURNS_CONTAINER: (
        "{} returns tensors inside a container: with use_reentrant=True their gradient is lost"
    ),
    DoubtReason.TAKES_CONTAINER: "{} gives {} tensors with gradient inside a container (CKPT007)",
    DoubtReason.KEPT_GRADIENT: (
        "{} keeps a tensor in `{}`, whose gradient is lost with use_reentrant=True, and keeps it again in the "
        "recompute: return it"
    ),
    DoubtReason.KEPT_STATE: ("{} depends on `{}` and changes it: the recompute would not find it as the forward did"),
    DoubtReason.NEEDED_CACHE: (
        "{} reads `{}` without asking whether it is None, and a layer sets it to None in training"
    ),
    DoubtReason.SHARED_CACHE: (
        "{} takes from `{}` what another block put there, and a layer sets it to None in training"
    ),
    DoubtReason.NO_CALL: "no call of {} was found: see that gradient tensors reach it by position",
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


def missing_text(missing: MissingSwitch) -> str:
    """Why nothing would switch a layer on, and what to do about it."""
    if missing.reason is Missing.OWN_SWITCH:
        model, target, value = missing.names
        how = f"`{target} = {value}`" if value else f"`{target.removeprefix('self.')}`"
        return _MISSING[missing.reason].format(model, how)
    return _MISSING[missing.reason].format(*missing.names)


def refusal_text(refusal: Refusal) -> str:
    """Why a class is not made a layer."""
    return _REFUSALS[refusal.reason].format(*refusal.names)


def doubt_text(doubt: Doubt) -> str:
    """Why making a class a layer is not safe."""
    plan = doubt.plan
    about = (quoted(plan.positional_past), _stays_text(plan)) if plan else ()
    return _DOUBTS[doubt.reason].format(*doubt.names, *about)


def _stays_text(plan: ArgumentPlan) -> str:
    """Why past state stays an argument by position."""
    if plan.blocked:
        return "only CKPT005 can change, which is unsafe as well"
    why = unknown_text(plan.unknown) if plan.unknown else "a parameter in between has no default"
    return f"is not repaired: {why}"


def read_text(read: OutputRead) -> str:
    """Why a model fails once its block is a layer, and what to do about it."""
    return (
        f"{read.caller}.{read.method} reads more outputs of {read.layer} where `{read.switch}` is True, and a layer "
        f"sets its own `use_cache` to False: first add `{read.switch} = False` under "
        "`if self.gradient_checkpointing and self.training` to that method"
    )
