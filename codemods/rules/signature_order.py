"""A gradient parameter comes after past state in a block's signature.

## What it does
Finds blocks whose forward takes past state before a gradient parameter that some caller passes, moves the
gradient parameter in front of the past state, and gives every caller in the tree the arguments in the new
order.

## Why is this bad?
Gradient arguments must be positional and past state must be a keyword: with this order, no call can satisfy both.
To live with it, transformers' GPT-2 passes `past if not (self.gradient_checkpointing and self.training) else None` by
position; DecisionTransformer, ImageGPT and GPTBigCode have the same signature.

## Example
```python
def forward(self, hidden_states, layer_past=None, encoder_hidden_states=None): ...   # before
def forward(self, hidden_states, encoder_hidden_states=None, layer_past=None): ...   # after
```

## Fix safety
Unsafe: callers outside the tree that pass these parameters by position break.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from ckpt_surgery.codemods.context import RuleContext
from ckpt_surgery.codemods.declaration import Declaration, RepairKind
from ckpt_surgery.codemods.facts.file_facts import ForwardSignature, Parameter
from ckpt_surgery.codemods.facts.syntax import Span
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.codemods.repair import NewArgument, OrderParameters, SourceRepair
from ckpt_surgery.codemods.repairs.calls import call_repair
from ckpt_surgery.codemods.tree.arguments import Meaning, reordered
from ckpt_surgery.codemods.tree.call_sites import CallSite
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.wording import quoted

RULE = Declaration(
    code="CKPT005",
    repair=RepairKind.UNSAFE,
    applicability=Applicability.UNSAFE,
    commit="{}.forward takes gradient parameters before past state, and its callers follow",
    settles=("CKPT001",),
)

_Callers = Mapping[ClassRef, list[CallSite]]
_Blocked = Mapping[ClassRef, Mapping[str, None]]
"""The gradient parameters of a forward that stand behind past state, in order."""


class UnfollowedUse(Enum):
    """A use of a forward in the tree that no repair here follows: reordering would break it silently."""

    OVERRIDDEN = "overridden"
    CHECKPOINT_CALL = "checkpoint call"
    SINGLE_INSTANCE = "single instance"
    UNBOUND_CALL = "unbound call"
    OTHER_SIGNATURE = "other signature"


_WORDS: Mapping[UnfollowedUse, str] = {
    UnfollowedUse.OVERRIDDEN: "{} overrides the forward and may call this one",
    UnfollowedUse.CHECKPOINT_CALL: "a checkpoint call in {} passes its arguments by position",
    UnfollowedUse.SINGLE_INSTANCE: "{} holds an instance outside any stack",
    UnfollowedUse.UNBOUND_CALL: "{}.forward is called without an instance in {}",
    UnfollowedUse.OTHER_SIGNATURE: "one of its calls also runs {}.forward, which takes other parameters",
}


@dataclass(frozen=True, slots=True)
class _Unfollowed:
    """Such a use, and the names that it is about."""

    use: UnfollowedUse
    names: tuple[str, ...]


def find(context: RuleContext) -> Iterator[Finding]:
    """A finding for every forward that some call of the tree needs in another order."""
    callers: dict[ClassRef, list[CallSite]] = defaultdict(list)
    blocked: dict[ClassRef, dict[str, None]] = defaultdict(dict)
    for site in context.tree.calls.all():
        plan = context.tree.calls.plan(site)
        for owner in _owners(context, site):
            callers[owner].append(site)
            blocked[owner].update(dict.fromkeys(plan.blocked))
    for owner, names in blocked.items():
        if names and owner.path in context.tree.checked:
            yield _finding(context, _group(context, owner, callers), blocked, callers)


def _owners(context: RuleContext, site: CallSite) -> tuple[ClassRef, ...]:
    """The classes whose forwards a call runs."""
    forwards = (context.tree.bases.forward(block) for block, _ in site.blocks)
    return tuple(dict.fromkeys(forward[0] for forward in forwards if forward))


def _group(context: RuleContext, owner: ClassRef, callers: _Callers) -> tuple[ClassRef, ...]:
    """The classes that share calls with `owner`, itself first: they are reordered together or not at all."""
    group = {owner: None}
    waiting = [owner]
    while waiting:
        for site in callers[waiting.pop()]:
            for other in _owners(context, site):
                if other not in group:
                    group[other] = None
                    waiting.append(other)
    return tuple(group)


def _finding(context: RuleContext, group: tuple[ClassRef, ...], blocked: _Blocked, callers: _Callers) -> Finding:
    owner = group[0]
    message = f"{owner.name}.forward takes {quoted(blocked[owner])} behind past state: no call can pass both correctly"
    unfollowed = _unfollowed(context, group, blocked)
    repairs: tuple[SourceRepair, ...] = ()
    if unfollowed:
        message += f"; not repaired: {_WORDS[unfollowed.use].format(*unfollowed.names)}"
    else:
        repairs = _repairs(context, group, tuple(blocked[owner]), callers)
    if repairs:
        message += f"; reordering breaks callers outside the tree ({len(callers[owner])} inside follow)"
    span = owner.cls.forward.span if owner.cls.forward else owner.cls.header
    return context.finding(RULE, owner.path, span, owner.name, message, repairs=repairs)


def _unfollowed(context: RuleContext, group: tuple[ClassRef, ...], blocked: _Blocked) -> _Unfollowed | None:
    """The first reason not to reorder the forwards of a group."""
    for member in group:
        if set(blocked[member]) != set(blocked[group[0]]):
            return _Unfollowed(UnfollowedUse.OTHER_SIGNATURE, (member.name,))
    return next((use for member in group for use in _uses(context, member, group)), None)


def _uses(context: RuleContext, owner: ClassRef, group: tuple[ClassRef, ...]) -> Iterator[_Unfollowed]:
    """The uses of a class's forward that no repair here follows."""
    tree = context.tree
    for heir in tree.bases.heirs(owner):
        if heir.cls.forward and (heir not in group or "super().forward" in tree.source(heir.path).of(heir.cls.span)):
            yield _Unfollowed(UnfollowedUse.OVERRIDDEN, (heir.name,))
    for ref in tree.blocks.with_inlines:
        for inline in ref.cls.inlines:
            paths = [path for checkpoint in inline.checkpoints for path in checkpoint.paths]
            if any(owner in tree.bases.chain(block) for block in tree.containers.classes_at(ref, paths)):
                yield _Unfollowed(UnfollowedUse.CHECKPOINT_CALL, (ref.name,))
    for ref, attribute in tree.containers.holders.get(owner.name, ()):
        called = {path for call in ref.cls.calls for path in call.paths}
        if (attribute,) not in called and owner in tree.containers.reached(ref, (attribute,)):
            yield _Unfollowed(UnfollowedUse.SINGLE_INSTANCE, (ref.name,))
    unbound = re.compile(rf"\b{owner.name}\.forward\(")
    for path in tree.checked:
        if owner in tree.names.named(path, owner.name) and unbound.search(tree.text(path)):
            yield _Unfollowed(UnfollowedUse.UNBOUND_CALL, (owner.name, path))


def _order(meaning: Meaning, forward: ForwardSignature, names: tuple[str, ...]) -> list[Parameter]:
    """The positional parameters with the gradient ones moved in front of the first past state."""
    params = [parameter for parameter in forward.params if parameter.kind == "positional"]
    moved = [parameter for parameter in params if parameter.name in names]
    rest = [parameter for parameter in params if parameter.name not in names]
    wall = next(index for index, parameter in enumerate(rest) if meaning.past(parameter))
    return [*rest[:wall], *moved, *rest[wall:]]


def _repairs(
    context: RuleContext, group: tuple[ClassRef, ...], names: tuple[str, ...], callers: _Callers
) -> tuple[SourceRepair, ...]:
    """The new signatures and calls; nothing where one of them cannot be written."""
    repairs: dict[SourceRepair, None] = {}
    new_calls: dict[CallSite, tuple[NewArgument, ...]] = {}
    for owner in group:
        forward = owner.cls.forward
        if forward is None or owner.path not in context.tree.checked:
            return ()
        meaning = context.tree.calls.meaning(owner)
        params = _order(meaning, forward, names)
        if _required_behind_default(params):
            return ()
        repairs[_signature(context, owner, forward, params)] = None
        for site in callers[owner]:
            arguments = reordered(site.call.args, forward, params, meaning)
            if arguments is None or new_calls.setdefault(site, arguments) != arguments:
                return ()
    for site, arguments in new_calls.items():
        repairs[call_repair(context.tree, site.owner.path, site.call.span, arguments)] = None
    return tuple(repairs)


def _signature(
    context: RuleContext, owner: ClassRef, forward: ForwardSignature, params: list[Parameter]
) -> OrderParameters:
    """The parameters in their new order."""
    spans = forward.param_spans[: len(params)]
    span = Span(*spans[0][:2], *spans[-1][2:])
    method = context.tree.places(owner.path).definition(forward.span)
    return OrderParameters(owner.path, span, method, tuple(parameter.name for parameter in params))


def _required_behind_default(params: list[Parameter]) -> bool:
    defaults = [parameter.default is not None for parameter in params]
    return defaults != sorted(defaults)
