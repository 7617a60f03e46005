"""A gradient parameter comes after past state in a block's signature.

## What it does
Finds blocks whose forward takes past state before a gradient parameter that some caller passes, moves the gradient
parameter in front of the past state, and gives every caller in the tree the arguments in the new order.

## Why is this bad?
With `use_reentrant=True` gradient arguments must be positional and past state must be a keyword: in this order, no
call can satisfy both. To work around it, transformers' GPT-2 passes `past if not (self.gradient_checkpointing and
self.training) else None` by position; DecisionTransformer, ImageGPT and GPTBigCode have the same signature.

## Example
```python
def forward(self, hidden_states, layer_past=None, encoder_hidden_states=None): ...   # before
def forward(self, hidden_states, encoder_hidden_states=None, layer_past=None): ...   # after
```

## Fix safety
Unsafe: callers outside the tree that pass these parameters by position break. Not repaired where a comment stands
among the parameters. Information where nothing uses the reentrant mode (see CKPT003).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from ckpt_surgery.codemods.facts.syntax import Span
from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext
from ckpt_surgery.codemods.repair import NewArgument, OrderParameters, SourceRepair
from ckpt_surgery.codemods.repairs.calls import call_repair
from ckpt_surgery.codemods.tree.arguments import reordered
from ckpt_surgery.codemods.tree.caching import reachable
from ckpt_surgery.codemods.tree.call_sites import CallSite
from ckpt_surgery.codemods.tree.classes import ClassRef
from ckpt_surgery.codemods.wording import Because, WordedReason, quoted
from ckpt_surgery.text import plural

RULE = Declaration(
    code="CKPT005",
    repair=RepairKind.UNSAFE,
    commit="{}.forward takes gradient parameters before past state, and its callers follow",
    settles=("CKPT001",),
)

_Callers = Mapping[ClassRef, list[CallSite]]


class UnfollowedUse(WordedReason):
    """A use of a forward in the tree that no repair adapts, so that reordering would break it silently."""

    OVERRIDDEN = "{} overrides the forward and may call this one"
    CHECKPOINT_CALL = "a checkpoint call in {} passes its arguments by position"
    SINGLE_INSTANCE = "{} holds an instance outside any stack"
    UNBOUND_CALL = "{}.forward is called without an instance in {}"
    OTHER_SIGNATURE = "one of its calls also runs {}.forward, which takes other parameters"


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding for every forward that some call of the tree needs in another order."""
    callers: dict[ClassRef, list[CallSite]] = defaultdict(list)
    blocked: dict[ClassRef, dict[str, None]] = defaultdict(dict)  # gradient parameters after past state, in order
    for site in context.tree.calls.all():
        plan = context.tree.calls.plan(site)
        for owner in context.tree.calls.owners(site):
            callers[owner].append(site)
            blocked[owner].update(dict.fromkeys(plan.blocked))
    for owner, names in blocked.items():
        if not names or owner.path not in context.tree.checked:
            continue
        # the classes that share calls with it, itself first: either all are reordered or none
        group = reachable(
            [owner], lambda each: [other for site in callers[each] for other in context.tree.calls.owners(site)]
        )
        others = [member.name for member in group if set(blocked[member]) != set(names)]
        others += [name for site in callers[owner] for name, _ in site.others]
        uses = (use for member in group for use in _uses(context, member, group))
        unfollowed = UnfollowedUse.OTHER_SIGNATURE.about(others[0]) if others else next(uses, None)
        repairs = () if unfollowed else _repairs(context, group, tuple(names), callers)
        message = f"{owner.name}.forward takes {quoted(names)} behind past state: "
        message += "with use_reentrant=True no call can pass both correctly"
        if unfollowed:
            message += f"; not repaired: {unfollowed.text}"
        if repairs:
            message += f"; the repair changes {plural(len(callers[owner]), 'call')} in these files, and breaks calls "
            message += "elsewhere that pass it by position"
        span = owner.cls.forward.span if owner.cls.forward else owner.cls.header
        applicability = context.if_reentrant(RULE, owner.path, Applicability.UNSAFE)
        yield context.finding(RULE, owner.path, span, owner.name, message, applicability, repairs)


def _uses(context: RuleContext, owner: ClassRef, group: tuple[ClassRef, ...]) -> Iterator[Because]:
    tree = context.tree
    for heir in tree.bases.heirs(owner):
        if heir.cls.forward and (heir not in group or "super().forward" in tree.source(heir.path).of(heir.cls.span)):
            yield UnfollowedUse.OVERRIDDEN.about(heir.name)
    for ref in tree.blocks.with_inlines:
        paths = [path for inline in ref.cls.inlines for call in inline.checkpoints for path in call.paths]
        if any(owner in tree.bases.chain(block) for block in tree.containers.classes_at(ref, paths)):
            yield UnfollowedUse.CHECKPOINT_CALL.about(ref.name)
    for ref, attribute in tree.containers.holders.get(owner.name, ()):
        called = {path for call in ref.cls.calls for path in call.paths}
        if (attribute,) not in called and owner in tree.containers.reached(ref, (attribute,)):
            yield UnfollowedUse.SINGLE_INSTANCE.about(ref.name)
    unbound = re.compile(rf"\b{owner.name}\.forward\(")
    for path in tree.checked:
        if owner in tree.names.named(path, owner.name) and unbound.search(tree.text(path)):
            yield UnfollowedUse.UNBOUND_CALL.about(owner.name, path)


def _repairs(
    context: RuleContext, group: tuple[ClassRef, ...], names: tuple[str, ...], callers: _Callers
) -> tuple[SourceRepair, ...]:
    """Return the new signatures and calls; none if one of them cannot be written."""
    repairs: dict[SourceRepair, None] = {}
    new_calls: dict[CallSite, tuple[NewArgument, ...]] = {}
    for owner in group:
        forward = owner.cls.forward
        if forward is None or owner.path not in context.tree.checked:
            return ()
        meaning = context.tree.calls.meaning(owner)
        positional = [param for param in forward.params if param.kind == "positional"]
        rest = [param for param in positional if param.name not in names]
        first_past = next(index for index, param in enumerate(rest) if meaning.past(param))
        params = [*rest[:first_past], *(param for param in positional if param.name in names), *rest[first_past:]]
        defaults = [param.default is not None for param in params]
        if defaults != sorted(defaults):
            return ()  # one without a default would come after one with a default
        first, last = positional[0].span, positional[-1].span
        span = Span(*first[:2], *last[2:])
        if "#" in context.tree.source(owner.path).of(Span(*forward.span[:2], last.end_line + 1, 0)):
            return ()  # a comment would stay where its parameter was
        method = context.tree.places(owner.path).definition(forward.span)
        new_order = tuple(param.name for param in params)
        repairs[OrderParameters(owner.path, span, method, new_order)] = None
        for site in callers[owner]:
            arguments = reordered(site.call.args, forward, params, meaning)
            if arguments is None or new_calls.setdefault(site, arguments) != arguments:
                return ()
    calls = (call_repair(context.tree, s.owner.path, s.call.span, arguments) for s, arguments in new_calls.items())
    return tuple(dict.fromkeys([*repairs, *calls]))
