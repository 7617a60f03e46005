"""An inline branch checkpoints a block by hand, beside the direct call.

## What it does
Finds `if self.gradient_checkpointing and self.training: ... checkpoint(layer, ...) ... else: layer(...)` in
all its spellings, and checkpoint calls that stand alone. The direct call of the else branch stays, the
branch goes, and the block's class becomes a `GradientCheckpointingLayer`.

## Why is this bad?
Two calls of one block drift apart: in 41 of 294 real sites of transformers 4.52.4 they passed different
arguments (CLVP passes `cache_position` where the block takes `use_cache`), so that training with and
without checkpointing computes different things. Once the block is a layer the branch checkpoints twice.

## Example
```python
if self.gradient_checkpointing and self.training:                                      # before
    hidden_states = self._gradient_checkpointing_func(layer.__call__, hidden_states, mask)
else:
    hidden_states = layer(hidden_states, attention_mask=mask)

hidden_states = layer(hidden_states, attention_mask=mask)                              # after
```

## Fix safety
Safe where the test is about checkpointing and training alone, the else branch calls the same blocks, and
their classes can be made layers. The else branch is the truth: where the two disagree the finding says
how. A guard such as `if use_cache: ... use_cache = False` stays where later code reads the name. Unsafe
where the test has other conditions, where the direct call needs another signature first (CKPT005), or where
a call elsewhere does that passes past state by position to a block which the repair makes a layer.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.context import Context
from ckpt_surgery.codemods.declaration import Declaration, RepairKind
from ckpt_surgery.codemods.edits.conversion import Conversion, convert
from ckpt_surgery.codemods.edits.derived_class import alias_of, aliased, derive
from ckpt_surgery.codemods.edits.inline_edit import unwrapped
from ckpt_surgery.codemods.facts.file_facts import Arg, Call, CheckpointCall, InlineBranch, Path
from ckpt_surgery.codemods.finding import Applicability, Edit, Finding
from ckpt_surgery.codemods.tree.arguments import bind
from ckpt_surgery.codemods.tree.call_sites import Site, block_refs, plan_site
from ckpt_surgery.codemods.tree.classes import External, Ref, is_plain_external

RULE = Declaration(
    code="CKPT002",
    repair=RepairKind.SAFE,
    commit="{}: the inline checkpoint branch gives way to the direct call",
)
_KNOWN_KINDS = {"checkpoint", "guard", "past", "function", "mirrored", "log"}


def find(context: Context) -> Iterator[Finding]:
    """A finding for every inline branch and every checkpoint call that stands alone."""
    places = [(owner, inline) for owner in context.blocks.with_inlines for inline in owner.cls.inlines]
    repairs = [_repair(context, owner, inline) for owner, inline in places]
    staying: set[Ref] = set()
    for (owner, inline), (_, reason) in zip(places, repairs, strict=True):
        if reason:
            staying.update(_blocks(context, owner, inline))
    for (owner, inline), (edits, reason) in zip(places, repairs, strict=True):
        shared = staying & set(_blocks(context, owner, inline))
        if shared and not reason:
            names = ", ".join(sorted(ref.name for ref in shared))
            reason = f"another branch that stays checkpoints {names} too, which would then be computed three times"
        yield _finding(context, owner, inline, edits, reason)


def _blocks(context: Context, owner: Ref, inline: InlineBranch) -> tuple[Ref, ...]:
    return block_refs(context, owner, [path for checkpoint in inline.checkpoints for path in checkpoint.paths])


def _finding(context: Context, owner: Ref, inline: InlineBranch, edits: tuple[Edit, ...], reason: str) -> Finding:
    names = ", ".join(dict.fromkeys(checkpoint.callee for checkpoint in inline.checkpoints))
    if inline.bare:
        message = f"{names} is checkpointed by a direct call"
    else:
        message = f"{names} is checkpointed by an inline branch"
    disagreement = _disagreement(context, owner, inline)
    if disagreement:
        message += f"; the branches disagree: {disagreement}"
    if reason:
        message += f"; left to a person: {reason}" if not edits else f"; {reason}"
    applicability = Applicability.UNSAFE if reason else Applicability.SAFE
    return context.finding(RULE, owner.path, inline.span, owner.name, message, applicability, edits)


def _repair(context: Context, owner: Ref, inline: InlineBranch) -> tuple[tuple[Edit, ...], str]:
    """The edits, and why they are not safe (or not there)."""
    if inline.bare:
        return (), "there is no else branch that tells the direct call"
    if not inline.orelse or inline.orelse_is_elif:
        return (), "the branch has no else of its own"
    if inline.is_elif and inline.guard_needed:
        return (), f"the branch is an elif, and later code relies on its guard of {inline.guard}"
    if not _reaches_transformers(context, owner):
        return (), "the file uses nothing of transformers, so nothing would switch a layer's checkpointing on"
    conversions: list[Conversion] = []
    converted = 0
    for checkpoint in inline.checkpoints:
        if not _called_directly(checkpoint, inline):
            return (), f"the else branch does not call {checkpoint.callee}"
        conversion, blocks = _conversion(context, owner, checkpoint, inline)
        conversions.append(conversion)
        converted += blocks
    reasons = [conversion.reason for conversion in conversions if conversion.reason]
    if not converted:
        return (), reasons[0] if reasons else "no block class is known behind the call"
    torch_only = [reason for reason in reasons if reason.startswith("torch's own")]
    if len(reasons) > len(torch_only):
        # A block behind the call that does not become a layer would lose the checkpointing it has.
        return (), next(reason for reason in reasons if reason not in torch_only)
    doubts: list[str] = []
    unknown = sorted(set(inline.body_kinds) - _KNOWN_KINDS)
    if unknown:
        doubts.append("the branch holds statements that the else branch lacks")
    if "gradient_checkpointing" not in inline.test:
        doubts.append("gradient_checkpointing_enable() does not set what the test asks for")
    if inline.conditions:
        doubts.append(f"the test also asks for {' and '.join(inline.conditions)}")
    blocked = _blocked(context, owner, inline)
    if blocked:
        doubts.append(f"{blocked} can be positional only after CKPT005")
    else:
        doubts += [conversion.doubt for conversion in conversions if conversion.doubt]
    conversion_edits = dict.fromkeys(edit for conversion in conversions for edit in conversion.edits)
    edits_of_all = (*conversion_edits, unwrapped(context, owner, inline))
    return edits_of_all, "; ".join(dict.fromkeys(doubts))


def _reaches_transformers(context: Context, owner: Ref) -> bool:
    """Whether the file imports from transformers, by name or by dots out of a model's folder."""
    facts = context.tree.facts(owner.path)
    return any(item.module.startswith(("transformers", "...")) for item in (facts.imports if facts else ()))


def _called_directly(checkpoint: CheckpointCall, inline: InlineBranch) -> bool:
    if checkpoint.wrapped == "closure":
        return any(call.callee == checkpoint.callee for call in inline.direct)
    direct = {path for call in inline.direct for path in call.paths}
    return not checkpoint.paths or bool(direct & set(checkpoint.paths)) or _is_attribute(checkpoint.paths)


def _is_attribute(paths: tuple[Path, ...]) -> bool:
    """`self.conv(x)`: such calls are no block calls and are not recorded one by one."""
    return all(len(path) == 1 for path in paths)


def _conversion(
    context: Context, owner: Ref, checkpoint: CheckpointCall, inline: InlineBranch
) -> tuple[Conversion, int]:
    """What makes the callee's classes layers, and how many classes are layers then."""
    paths = checkpoint.paths
    if checkpoint.wrapped == "closure":
        paths = tuple(
            path
            for call in owner.cls.calls
            if call.method == inline.method
            for path in call.paths
            if path[0] != "<local>"
        )
    refs = block_refs(context, owner, paths)
    externals = [t for path in paths for t in context.tree.reached(owner, path) if isinstance(t, External)]
    aliases = {alias.original for ref in refs if (alias := alias_of(context, owner.path, ref.name))}
    untold = [one.name for one in externals if not is_plain_external(one) and one.name not in aliases]
    if untold or not (refs or externals):
        reason = f"what {checkpoint.callee} is cannot be told ({', '.join(untold) or 'nothing is known of it'})"
        return Conversion(reason=reason), 0
    if not refs:
        return Conversion(reason=f"torch's own {externals[0].name} stays without checkpointing"), 0
    edits: list[Edit] = []
    doubt = ""
    for ref in refs:
        derived = derive(context, owner, paths, ref)
        if derived:
            edits += derived
            continue
        conversion = convert(context, ref)
        if conversion.reason:
            return conversion, 0
        edits += [*conversion.edits, *aliased(context, owner, ref)]
        doubt = doubt or conversion.doubt
    return Conversion(tuple(edits), doubt=doubt), len(refs)


def _blocked(context: Context, owner: Ref, inline: InlineBranch) -> str:
    """Gradient arguments of the direct calls that no call can pass rightly as the signature stands."""
    for call in inline.direct:
        site = _site(context, owner, call)
        if site:
            plan = plan_site(context, site, gradient=True, past=True)
            if plan.blocked:
                return ", ".join(plan.blocked)
    return ""


def _site(context: Context, owner: Ref, call: Call) -> Site | None:
    refs = block_refs(context, owner, call.paths)
    blocks = tuple((ref, found[1]) for ref in refs if (found := context.tree.forward(ref)))
    return Site(owner, call, blocks) if blocks else None


def _disagreement(context: Context, owner: Ref, inline: InlineBranch) -> str:
    """How the arguments of the two branches differ, past state left out: that is dropped in both."""
    notes: list[str] = []
    for checkpoint in inline.checkpoints:
        for call in inline.direct:
            site = _site(context, owner, call)
            if site is None or not set(call.paths) & set(checkpoint.paths):
                continue
            ref, forward = site.blocks[0]
            meaning = context.meaning(ref)
            past = {parameter.name for parameter in forward.params if meaning.past(parameter)} | {"use_cache"}
            one, other = bind(checkpoint.args, forward), bind(call.args, forward)
            if isinstance(one, str) or isinstance(other, str):
                continue
            for name in dict.fromkeys([*one, *other]):
                left, right = _text(checkpoint.args, one.get(name)), _text(call.args, other.get(name))
                if name not in past and left != right:
                    notes.append(f"`{name}`: {left} under checkpointing, {right} otherwise")
    return "; ".join(dict.fromkeys(notes))


def _text(arguments: tuple[Arg, ...], position: int | None) -> str:
    return "left out" if position is None else f"`{arguments[position].text}`"
