"""An inline branch checkpoints a block by hand, beside the direct call.

## What it does
Finds `if self.gradient_checkpointing and self.training: ... checkpoint(layer, ...) ... else: layer(...)` in
all its spellings, and checkpoint calls that stand alone; functions with no module behind them are left to CKPT012. The
direct call of the else branch stays, the branch goes, and the block's class becomes a `GradientCheckpointingLayer`.

## Why is this bad?
Two calls of the same block drift apart. At 41 of 294 call sites in transformers 4.52.4 they passed different
arguments (CLVP passes `cache_position` where the block takes `use_cache`), so training with and without checkpointing
computes different things. Once the block is a layer, the branch checkpoints it twice.

## Example
```python
if self.gradient_checkpointing and self.training:                                      # before
    hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, mask)
else:
    hidden_states = layer(hidden_states, attention_mask=mask)

hidden_states = layer(hidden_states, attention_mask=mask)                              # after
```

## Fix safety
Safe if the test is about checkpointing and training alone, the else branch calls the same blocks, and their classes
can be made layers. The else branch is the truth: if the two disagree, the finding says how. A mode that the branch
sets (`use_reentrant=False`) goes with it, and `gradient_checkpointing_kwargs` decide, as everywhere else. A guard such
as `if use_cache: ... use_cache = False` stays if later code reads the name. Unsafe if the test has other conditions,
if the direct call needs another signature first (CKPT005), if a call elsewhere needs one that passes past state by
position to a block which the repair makes a layer, if the branch goes without what may be past state under another
name, if a function that works checkpoints several modules as one, which keeps less than each of them checkpointed by
itself (modules that it is handed with the checkpoint call are not counted), or if the model reads more outputs of the
block where its `use_cache` is True, and does not set that to False under checkpointing (CKPT001 says why). Unsafe,
too, if the direct call is one of `layer.forward`, which leads round a layer up to transformers 5.0, if the test asks a
configuration that transformers does not read, if the blocks are set to eval mode while their model trains or stand in
a plain list of Python, so that no switch reaches them, or if something else leads round the layer (see CKPT001).

The branch stays, and is information only, where it is the right way to checkpoint because nothing of transformers
would switch a layer on: no model of transformers holds the class, the model does not say
`supports_gradient_checkpointing = True`, or it sets `gradient_checkpointing` or the checkpoint function by itself. It
stays, too, where the package asks for a transformers older than 4.52, which has no such layer. Such a branch is unsafe
only if it disagrees with the direct call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from ckpt_surgery.codemods.context import RuleContext
from ckpt_surgery.codemods.declaration import Declaration, RepairKind
from ckpt_surgery.codemods.facts.file_facts import ELEMENT, LOCAL, AttributePath, CheckpointCall, InlineBranch
from ckpt_surgery.codemods.facts.syntax import Argument
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.codemods.repair import KeepElseBranch, KeepElseExpression, SourceRepair
from ckpt_surgery.codemods.repairs.calls import call_repair
from ckpt_surgery.codemods.repairs.conversion import Conversion, Doubt, Refusal, convert
from ckpt_surgery.codemods.repairs.derived_class import alias_of, aliased, derive
from ckpt_surgery.codemods.tree.blocks import paths_behind
from ckpt_surgery.codemods.tree.branch_arguments import Disagreement, disagreements
from ckpt_surgery.codemods.tree.checkpointed import finds_last_values, runs_functions
from ckpt_surgery.codemods.tree.classes import ClassRef, External, is_plain_external
from ckpt_surgery.codemods.tree.output_reads import OutputRead, failing_read
from ckpt_surgery.codemods.tree.switches import MissingSwitch
from ckpt_surgery.codemods.wording import (
    doubt_text,
    missing_text,
    quoted,
    read_text,
    refusal_text,
    replaced_text,
)
from ckpt_surgery.model_patches.release_names import FLAG

RULE = Declaration(
    code="CKPT002",
    repair=RepairKind.SAFE,
    commit="{}: the inline checkpoint branch gives way to the direct call",
)


class Obstacle(Enum):
    """What stands in the way of a repair, or keeps it from being safe."""

    NO_BRANCH = "no branch"
    NO_ELSE = "no else"
    ELIF_WITH_GUARD = "elif with guard"
    NOT_CALLED = "not called"
    UNKNOWN_CALLEE = "unknown callee"
    NOTHING_KNOWN = "nothing known"
    TORCH_MODULE = "torch module"
    NO_CLASS = "no class"
    SHARED_BLOCK = "shared block"
    OTHER_STATEMENTS = "other statements"
    OTHER_SWITCH = "other switch"
    OTHER_CONFIGURATION = "other configuration"
    BY_FORWARD = "by forward"
    IN_EVAL = "in eval"
    UNREGISTERED = "unregistered"
    SEVERAL_MODULES = "several modules"
    OTHER_CONDITIONS = "other conditions"
    SIGNATURE_ORDER = "signature order"
    WITHHELD = "withheld"


_WORDS: Mapping[Obstacle, str] = {
    Obstacle.NO_BRANCH: "there is no else branch with a direct call to keep",
    Obstacle.NO_ELSE: "the branch has no else of its own",
    Obstacle.ELIF_WITH_GUARD: "the branch is an elif, and later code relies on its guard of {}",
    Obstacle.NOT_CALLED: "the else branch does not call {}",
    Obstacle.UNKNOWN_CALLEE: "the class of {} cannot be determined ({})",
    Obstacle.NOTHING_KNOWN: "the class of {} cannot be determined (nothing shows what it holds)",
    Obstacle.TORCH_MODULE: "torch's own {} stays without checkpointing",
    Obstacle.NO_CLASS: "the class behind the call is not known",
    Obstacle.SHARED_BLOCK: "another branch, which stays, also checkpoints {}: it would be computed three times",
    Obstacle.OTHER_STATEMENTS: "the branch holds statements that the else branch lacks",
    Obstacle.OTHER_SWITCH: "gradient_checkpointing_enable() does not set what the test asks for",
    Obstacle.OTHER_CONFIGURATION: "the test asks {}'s own configuration, which transformers does not read",
    Obstacle.BY_FORWARD: "`{}` leads round a layer up to transformers 5.0: call the block itself",
    Obstacle.IN_EVAL: "{} sets {} to eval mode: a layer asks for its own mode, the branch for that of its model",
    Obstacle.UNREGISTERED: "{} is a plain list, whose modules nothing would switch on: make it a ModuleList first",
    Obstacle.SEVERAL_MODULES: "{} checkpoints several modules as one: each by itself keeps what is between them, too",
    Obstacle.OTHER_CONDITIONS: "the test also asks for {}",
    Obstacle.SIGNATURE_ORDER: "{} can be positional only after CKPT005",
    Obstacle.WITHHELD: "the branch goes without {}: if that is past state, a layer would write it twice",
}


@dataclass(frozen=True, slots=True)
class Hindrance:
    """An obstacle, and the names that it is about."""

    obstacle: Obstacle
    names: tuple[str, ...] = ()


Reason = Hindrance | Refusal | Doubt | OutputRead | MissingSwitch


@dataclass(frozen=True, slots=True)
class _BranchRepair:
    """The repairs that remove a branch, and why they are not safe, or not there; safe where there is no reason."""

    repairs: tuple[SourceRepair, ...] = ()
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class _Layers:
    """What makes the classes behind a checkpoint call layers."""

    repairs: tuple[SourceRepair, ...]
    doubt: Doubt | OutputRead | None


def find(context: RuleContext) -> Iterator[Finding]:
    """A finding for every inline branch and every checkpoint call that stands alone."""
    places = [
        (owner, inline)
        for owner in context.tree.blocks.with_inlines
        for inline in owner.cls.inlines
        if not runs_functions(context.tree, owner, inline)
    ]
    repairs = [_repair(context, owner, inline) for owner, inline in places]
    staying: set[ClassRef] = set()
    for (owner, inline), repair in zip(places, repairs, strict=True):
        if repair.reasons:
            staying.update(_blocks(context, owner, inline))
    for (owner, inline), repair in zip(places, repairs, strict=True):
        shared = staying & set(_blocks(context, owner, inline))
        if shared and not repair.reasons:
            names = ", ".join(sorted(ref.name for ref in shared))
            repair = _BranchRepair(repair.repairs, (Hindrance(Obstacle.SHARED_BLOCK, (names,)),))
        yield _finding(context, owner, inline, repair)


def _blocks(context: RuleContext, owner: ClassRef, inline: InlineBranch) -> tuple[ClassRef, ...]:
    paths = [path for checkpoint in inline.checkpoints for path in checkpoint.paths]
    return context.tree.containers.classes_at(owner, paths)


def _finding(context: RuleContext, owner: ClassRef, inline: InlineBranch, repair: _BranchRepair) -> Finding:
    names = ", ".join(dict.fromkeys(checkpoint.callee for checkpoint in inline.checkpoints))
    message = f"{names} is checkpointed by {_form(inline)}"
    differences = list(dict.fromkeys(map(_difference, disagreements(context.tree, owner, inline))))
    if differences:
        message += f"; the branches disagree: {'; '.join(differences)}"
    reasons = "; ".join(dict.fromkeys(map(_text, repair.reasons)))
    if reasons:
        message += f"; {reasons}" if repair.repairs else f"; not repaired: {reasons}"
    modes = ", ".join(dict.fromkeys(_modes(inline))) if repair.repairs else ""
    if modes:
        message += f"; `{modes}` goes with the branch: gradient_checkpointing_kwargs choose the mode from now on"
    if inline.method == "forward" and context.tree.bases.is_replaced(owner):
        message += f"; {replaced_text(owner)}"
        return context.finding(RULE, owner.path, inline.span, owner.name, message, Applicability.UNKNOWN)
    applicability = Applicability.UNSAFE if reasons else Applicability.SAFE
    if not differences and not repair.repairs and any(isinstance(reason, MissingSwitch) for reason in repair.reasons):
        applicability = Applicability.INFO
    return context.finding(RULE, owner.path, inline.span, owner.name, message, applicability, repair.repairs)


def _form(inline: InlineBranch) -> str:
    if inline.test is None:
        return "a direct call"
    return "a conditional expression" if inline.is_expression else "an inline branch"


def _modes(inline: InlineBranch) -> Iterator[str]:
    """The modes that the checkpoint calls of a branch set, as they are written."""
    for checkpoint in inline.checkpoints:
        for argument in checkpoint.args:
            if argument.name == "use_reentrant":
                yield f"use_reentrant={argument.text}"


def _text(reason: Reason) -> str:
    if isinstance(reason, Refusal):
        return refusal_text(reason)
    if isinstance(reason, Hindrance):
        return _WORDS[reason.obstacle].format(*reason.names)
    if isinstance(reason, OutputRead):
        return read_text(reason)
    if isinstance(reason, MissingSwitch):
        return missing_text(reason)
    return doubt_text(reason)


def _refused(obstacle: Obstacle, *names: str) -> _BranchRepair:
    return _BranchRepair(reasons=(Hindrance(obstacle, names),))


def _repair(context: RuleContext, owner: ClassRef, inline: InlineBranch) -> _BranchRepair:
    missing = context.tree.switches.of_branches(owner)
    if missing and missing.is_certain:
        return _BranchRepair(reasons=(missing,))
    if inline.test is None:
        return _refused(Obstacle.NO_BRANCH)
    if not inline.orelse or inline.orelse_is_elif:
        return _refused(Obstacle.NO_ELSE)
    if inline.is_elif and inline.guard_needed and inline.guard:
        return _refused(Obstacle.ELIF_WITH_GUARD, inline.guard)
    layers: list[_Layers] = []
    refusals: list[Hindrance | Refusal | MissingSwitch] = []
    for checkpoint in inline.checkpoints:
        if not _called_directly(checkpoint, inline):
            return _refused(Obstacle.NOT_CALLED, checkpoint.callee)
        conversion = _conversion(context, owner, checkpoint, inline)
        if isinstance(conversion, _Layers):
            layers.append(conversion)
        else:
            refusals.append(conversion)
    if not layers:
        return _BranchRepair(reasons=(refusals[0] if refusals else Hindrance(Obstacle.NO_CLASS),))
    for refusal in refusals:
        # A block behind the call that does not become a layer would lose the checkpointing it has.
        if not isinstance(refusal, Hindrance) or refusal.obstacle is not Obstacle.TORCH_MODULE:
            return _BranchRepair(reasons=(refusal,))
    made = dict.fromkeys(repair for part in layers for repair in part.repairs)
    for call, plan in context.tree.calls.lost_with(owner, inline):
        if plan.repair:
            made[call_repair(context.tree, owner.path, call.span, plan.repair)] = None
    doubts = (*_doubts(context, owner, inline, layers), *filter(None, [missing]))
    return _BranchRepair((*made, _without(context, owner, inline)), doubts)


def _without(context: RuleContext, owner: ClassRef, inline: InlineBranch) -> KeepElseBranch | KeepElseExpression:
    """The else branch in the place of the whole, which keeps the guards that later code relies on."""
    if inline.is_expression:
        choice = context.tree.places(owner.path).choice(inline.span)
        return KeepElseExpression(owner.path, inline.span, choice, context.tree.width)
    needed = inline.guard is not None and inline.guard_needed
    guards = tuple(at for at, kind in enumerate(inline.body_kinds) if kind == "guard" and needed)
    branch = context.tree.places(owner.path).branch(inline.span)
    return KeepElseBranch(owner.path, inline.span, branch, guards, context.tree.width)


def _doubts(context: RuleContext, owner: ClassRef, inline: InlineBranch, layers: list[_Layers]) -> Iterator[Reason]:
    """Why the repair of a branch is not safe."""
    if "other" in inline.body_kinds:
        yield Hindrance(Obstacle.OTHER_STATEMENTS)
    if inline.test and FLAG not in inline.test:
        yield Hindrance(Obstacle.OTHER_SWITCH)
    core, pretrained = context.tree.layers.is_core(owner.path), context.tree.bases.is_pretrained(owner)
    if inline.test and "config" in inline.test and not (core or pretrained):
        yield Hindrance(Obstacle.OTHER_CONFIGURATION, (owner.name,))
    by_forward = next((call.callee for call in inline.direct if call.callee.endswith(".forward")), None)
    if by_forward:
        yield Hindrance(Obstacle.BY_FORWARD, (by_forward,))
    yield from _unreached(context, owner, inline)
    together = [checkpoint for checkpoint in inline.checkpoints if checkpoint.runs_several]
    several = [each.callee for each in together if not finds_last_values(context.tree, owner, each)]
    if several:
        yield Hindrance(Obstacle.SEVERAL_MODULES, (", ".join(several),))
    if inline.conditions:
        yield Hindrance(Obstacle.OTHER_CONDITIONS, (" and ".join(inline.conditions),))
    withheld = [item.name for item in disagreements(context.tree, owner, inline) if item.withholds]
    if withheld:
        yield Hindrance(Obstacle.WITHHELD, (quoted(dict.fromkeys(withheld)),))
    blocked = _blocked(context, owner, inline)
    if blocked:
        yield Hindrance(Obstacle.SIGNATURE_ORDER, (", ".join(blocked),))
    else:
        yield from (part.doubt for part in layers if part.doubt)


def _unreached(context: RuleContext, owner: ClassRef, inline: InlineBranch) -> Iterator[Hindrance]:
    """Blocks whose own mode or place would keep a layer from being switched on where the branch was."""
    paths = dict.fromkeys(path for call in inline.checkpoints for path in paths_behind(owner, inline, call))
    for ref in context.tree.containers.classes_at(owner, paths):
        holder = context.tree.modes.held_in_eval_by(ref)
        if holder:
            yield Hindrance(Obstacle.IN_EVAL, (holder.name, ref.name))
    for path in paths:
        stack = context.tree.modes.unregistered_at(owner, path)
        if stack:
            yield Hindrance(Obstacle.UNREGISTERED, (stack,))


def _called_directly(checkpoint: CheckpointCall, inline: InlineBranch) -> bool:
    if checkpoint.wrapping == "closure":
        return any(call.callee == checkpoint.callee for call in inline.direct)
    direct = {path for call in inline.direct for path in call.paths}
    return not checkpoint.paths or bool(direct & set(checkpoint.paths)) or _is_attribute(checkpoint.paths)


def _is_attribute(paths: tuple[AttributePath, ...]) -> bool:
    """`self.conv(x)`, `self.mid.conv(x)`: such calls are no block calls and are not recorded one by one."""
    return not any({ELEMENT, LOCAL} & set(path) for path in paths)


def _conversion(
    context: RuleContext, owner: ClassRef, checkpoint: CheckpointCall, inline: InlineBranch
) -> _Layers | Hindrance | Refusal | MissingSwitch:
    """What makes the callee's classes layers, or why they are not made such."""
    tree = context.tree
    paths = paths_behind(owner, inline, checkpoint)
    refs = tree.containers.classes_at(owner, paths)
    externals = [t for path in paths for t in tree.containers.reached(owner, path) if isinstance(t, External)]
    aliases = {alias.original for ref in refs if (alias := alias_of(tree, owner.path, ref.name))}
    foreign = [external.name for external in externals if not is_plain_external(external)]
    unknown = [name for name in foreign if name not in aliases]
    if unknown:
        return Hindrance(Obstacle.UNKNOWN_CALLEE, (checkpoint.callee, ", ".join(unknown)))
    if not (refs or externals):
        return Hindrance(Obstacle.NOTHING_KNOWN, (checkpoint.callee,))
    if not refs:
        return Hindrance(Obstacle.TORCH_MODULE, (externals[0].name,))
    made: list[SourceRepair] = []
    doubts: list[Doubt | OutputRead] = []
    for ref in refs:
        derived = derive(tree, owner, paths, ref)
        if derived:
            made += derived
            continue
        conversion = convert(tree, ref, context.argument_repairs, recomputed=not any(_modes(inline)))
        if not isinstance(conversion, Conversion):
            return conversion
        made += [*conversion.repairs, *aliased(tree, owner, ref)]
        doubts += [doubt for doubt in (conversion.doubt, failing_read(tree, ref)) if doubt]
    return _Layers(tuple(made), doubts[0] if doubts else None)


def _blocked(context: RuleContext, owner: ClassRef, inline: InlineBranch) -> tuple[str, ...]:
    """Gradient arguments of the direct calls that no call can pass correctly as the signature stands."""
    for call in inline.direct:
        site = context.tree.calls.of_any(owner, call)
        blocked = context.tree.calls.plan(site).blocked if site else ()
        if blocked:
            return blocked
    return ()


def _difference(disagreement: Disagreement) -> str:
    left, right = _shown(disagreement.branch), _shown(disagreement.direct)
    return f"`{disagreement.name}`: {left} under checkpointing, {right} otherwise"


def _shown(argument: Argument | None) -> str:
    return "left out" if argument is None else f"`{argument.text}`"
