"""A gradient parameter stands behind past state in a block's signature.

## What it does
Finds blocks whose forward takes past state before a gradient parameter that some caller passes, moves the
gradient parameter in front of the past state, and gives every caller in the tree the arguments in the new
order.

## Why is this bad?
Gradient arguments must be positional and past state must be a keyword: with this order no call can have
both. transformers' GPT-2 passes `past if not (self.gradient_checkpointing and self.training) else None` by
position to live with it; DecisionTransformer, ImageGPT and GPTBigCode have the same signature.

## Example
```python
def forward(self, hidden_states, layer_past=None, encoder_hidden_states=None): ...   # before
def forward(self, hidden_states, encoder_hidden_states=None, layer_past=None): ...   # after
```

## Fix safety
Unsafe: callers outside the tree that pass these parameters by position break.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from ckpt_surgery.codemods.context import Context
from ckpt_surgery.codemods.declaration import Declaration, RepairKind
from ckpt_surgery.codemods.edits.call_edit import call_edit
from ckpt_surgery.codemods.facts.file_facts import Forward, Parameter
from ckpt_surgery.codemods.finding import Applicability, Edit, Finding
from ckpt_surgery.codemods.tree.arguments import Piece, reordered
from ckpt_surgery.codemods.tree.call_sites import Site, block_refs, plan_site, sites
from ckpt_surgery.codemods.tree.classes import Ref

RULE = Declaration(
    code="CKPT005",
    repair=RepairKind.UNSAFE,
    applicability=Applicability.UNSAFE,
    commit="{}.forward takes gradient parameters before past state, and its callers follow",
    settles=("CKPT001",),
)


def find(context: Context) -> Iterator[Finding]:
    """A finding for every forward that some call of the tree needs in another order."""
    callers: dict[Ref, list[Site]] = defaultdict(list)
    blocked: dict[Ref, dict[str, None]] = defaultdict(dict)
    for site in sites(context):
        owners = _owners(context, site)
        plan = plan_site(context, site, gradient=True, past=True)
        for owner in owners:
            callers[owner].append(site)
            blocked[owner].update(dict.fromkeys(plan.blocked))
    for owner, names in blocked.items():
        if names and owner.path in context.tree.checked:
            yield _finding(context, _group(context, owner, callers), blocked, callers)


def _owners(context: Context, site: Site) -> tuple[Ref, ...]:
    """The classes whose forwards a call runs."""
    defined = (context.tree.forward(block) for block, _ in site.blocks)
    return tuple(dict.fromkeys(one[0] for one in defined if one))


def _group(context: Context, owner: Ref, callers: Mapping[Ref, list[Site]]) -> tuple[Ref, ...]:
    """The classes that share calls with `owner`, itself first: they are reordered together or not at all."""
    found = {owner: None}
    waiting = [owner]
    while waiting:
        for site in callers[waiting.pop()]:
            for other in _owners(context, site):
                if other not in found:
                    found[other] = None
                    waiting.append(other)
    return tuple(found)


def _finding(
    context: Context,
    group: tuple[Ref, ...],
    blocked: Mapping[Ref, Mapping[str, None]],
    callers: Mapping[Ref, list[Site]],
) -> Finding:
    owner = group[0]
    listed = " and ".join(f"`{name}`" for name in blocked[owner])
    message = f"{owner.name}.forward takes {listed} behind past state: no call can pass both rightly"
    edits: tuple[Edit, ...] = ()
    reason = next((reason for one in group if (reason := _unfollowed(context, one, group))), "")
    apart = next((one for one in group if set(blocked[one]) != set(blocked[owner])), None)
    if apart:
        reason = f"a call of it also runs {apart.name}.forward, which takes other parameters"
    if not reason:
        edits = _edits(context, group, tuple(blocked[owner]), callers)
    if reason:
        message += f"; left to a person: {reason}"
    elif edits:
        message += f"; reordering breaks callers outside the tree ({len(callers[owner])} inside follow)"
    forward = owner.cls.forward
    span = forward.span if forward else owner.cls.header
    return context.finding(RULE, owner.path, span, owner.name, message, edits=edits)


def _unfollowed(context: Context, owner: Ref, group: tuple[Ref, ...]) -> str:
    """A use of the forward in the tree that no edit here follows: reordering would break it silently."""
    tree = context.tree
    for heir in tree.heirs(owner):
        if heir.cls.forward and (
            heir not in group or "super().forward" in context.source(heir.path).of(heir.cls.span)
        ):
            return f"{heir.name} overrides the forward and may call this one"
    for ref in context.blocks.with_inlines:
        for inline in ref.cls.inlines:
            paths = [path for checkpoint in inline.checkpoints for path in checkpoint.paths]
            if any(owner in tree.mro(block) for block in block_refs(context, ref, paths)):
                return f"a checkpoint call in {ref.name} passes its arguments by position"
    for ref, attribute in tree.holders.get(owner.name, ()):
        called = {path for call in ref.cls.calls for path in call.paths}
        if (attribute,) not in called and owner in tree.reached(ref, (attribute,)):
            return f"{ref.name} holds one outside any stack"
    unbound = re.compile(rf"\b{owner.name}\.forward\(")
    for path in tree.checked:
        if owner in tree.named(path, owner.name) and unbound.search(tree.text(path)):
            return f"{owner.name}.forward is called without an instance in {path}"
    return ""


def _order(context: Context, owner: Ref, forward: Forward, names: tuple[str, ...]) -> list[Parameter]:
    """The positional parameters with the gradient ones moved in front of the first past state."""
    meaning = context.meaning(owner)
    params = [parameter for parameter in forward.params if parameter.kind == "positional"]
    moved = [parameter for parameter in params if parameter.name in names]
    rest = [parameter for parameter in params if parameter.name not in names]
    wall = next(index for index, parameter in enumerate(rest) if meaning.past(parameter))
    return [*rest[:wall], *moved, *rest[wall:]]


def _edits(
    context: Context, group: tuple[Ref, ...], names: tuple[str, ...], callers: Mapping[Ref, list[Site]]
) -> tuple[Edit, ...]:
    """The new signatures and calls; nothing where one of them cannot be had."""
    edits: dict[Edit, None] = {}
    pieces_of: dict[Site, tuple[Piece, ...]] = {}
    for owner in group:
        forward = owner.cls.forward
        if forward is None or owner.path not in context.tree.checked:
            return ()
        params = _order(context, owner, forward, names)
        signature = _signature(context, owner, forward, params)
        if signature is None:
            return ()
        edits[signature] = None
        for site in callers[owner]:
            pieces = reordered(site.call.args, forward, params, context.meaning(owner))
            if pieces is None or pieces_of.setdefault(site, pieces) != pieces:
                return ()
    for site, pieces in pieces_of.items():
        edits[call_edit(context, site.owner.path, site.call.span, pieces)] = None
    return tuple(edits)


def _signature(context: Context, owner: Ref, forward: Forward, params: list[Parameter]) -> Edit | None:
    """The parameters in their new order, each as it was written; None where comments stand between them."""
    source = context.source(owner.path)
    spans = [source.range(span) for span in forward.param_spans[: len(params)]]
    texts = {p.name: source.text[low:high] for p, (low, high) in zip(forward.params, spans, strict=False)}
    gaps = [source.text[one[1] : other[0]] for one, other in itertools.pairwise(spans)]
    if any("#" in gap for gap in gaps) or _required_behind_default(params):
        return None
    first, *rest = params
    text = texts[first.name] + "".join(gap + texts[one.name] for gap, one in zip(gaps, rest, strict=True))
    return Edit(owner.path, spans[0][0], spans[-1][1], text)


def _required_behind_default(params: list[Parameter]) -> bool:
    defaults = [parameter.default is not None for parameter in params]
    return defaults != sorted(defaults)
