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
from collections.abc import Iterator

from codemods.arguments import reordered
from codemods.call_edit import call_edit
from codemods.facts import Forward, Parameter
from codemods.finding import Applicability, Edit, Finding
from codemods.refs import Ref
from codemods.rule import Context
from codemods.sites import Site, block_refs, plan_site, sites

CODE = "CKPT005"


def find(context: Context) -> Iterator[Finding]:
    """A finding for every forward that some call of the tree needs in another order."""
    by_forward: dict[Ref, list[Site]] = defaultdict(list)
    blocked: dict[Ref, dict[str, None]] = defaultdict(dict)
    for site in sites(context):
        for block, _ in site.blocks:
            defined = context.tree.forward(block)
            if defined is None:
                continue
            by_forward[defined[0]].append(site)
            plan = plan_site(context, site, gradient=True, past=True)
            blocked[defined[0]].update(dict.fromkeys(plan.blocked))
    for owner, names in blocked.items():
        forward = owner.cls.forward
        if names and forward and owner.path in context.tree.checked:
            yield _finding(context, owner, forward, tuple(names), by_forward[owner])


def _finding(context: Context, owner: Ref, forward: Forward, names: tuple[str, ...], callers: list[Site]) -> Finding:
    listed = " and ".join(f"`{name}`" for name in names)
    message = f"{owner.name}.forward takes {listed} behind past state: no call can pass both rightly"
    params = _order(context, owner, forward, names)
    unfollowed = _unfollowed(context, owner) or _shared(context, owner, callers)
    edits = () if unfollowed else _edits(context, owner, forward, params, callers)
    if unfollowed:
        message += f"; left to a person: {unfollowed}"
    elif edits:
        message += f"; reordering breaks callers outside the tree ({len(callers)} inside follow)"
    return context.finding(CODE, owner.path, forward.span, owner.name, message, Applicability.UNSAFE, edits)


def _unfollowed(context: Context, owner: Ref) -> str:
    """A use of the forward in the tree that no edit here follows: reordering would break it silently."""
    tree = context.tree
    for ref in tree.checked_refs():
        heir = ref is not owner and owner in tree.mro(ref)
        if heir and ref.cls.forward:
            return f"{ref.name} overrides the forward and may call this one"
        for inline in ref.cls.inlines:
            paths = [path for checkpoint in inline.checkpoints for path in checkpoint.paths]
            if any(owner in tree.mro(block) for block in block_refs(context, ref, paths)):
                return f"a checkpoint call in {ref.name} passes its arguments by position"
        held = {(name,) for name, built in ref.cls.attributes if owner.name in built.class_names()}
        called = {path for call in ref.cls.calls for path in call.paths}
        if any(owner in tree.reached(ref, path) for path in held - called):
            return f"{ref.name} holds one outside any stack"
    unbound = re.compile(rf"\b{owner.name}\.forward\(")
    for path in tree.checked:
        if owner in tree.named(path, owner.name) and unbound.search(tree.text(path)):
            return f"{owner.name}.forward is called without an instance in {path}"
    return ""


def _shared(context: Context, owner: Ref, callers: list[Site]) -> str:
    """A call that also runs another forward cannot follow this one alone."""
    for site in callers:
        for block, _ in site.blocks:
            defined = context.tree.forward(block)
            if defined and defined[0] is not owner:
                return f"the call in {site.owner.name} also runs {defined[0].name}.forward"
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
    context: Context, owner: Ref, forward: Forward, params: list[Parameter], callers: list[Site]
) -> tuple[Edit, ...]:
    source = context.source(owner.path)
    size = len(params)
    spans = [source.range(span) for span in forward.param_spans[:size]]
    texts = {p.name: source.text[low:high] for p, (low, high) in zip(forward.params, spans, strict=False)}
    gaps = [source.text[one[1] : other[0]] for one, other in itertools.pairwise(spans)]
    if any("#" in gap for gap in gaps) or _required_behind_default(params):
        return ()
    text = texts[params[0].name] + "".join(
        gap + texts[parameter.name] for gap, parameter in zip(gaps, params[1:], strict=True)
    )
    edits = [Edit(owner.path, spans[0][0], spans[-1][1], text)]
    for site in dict.fromkeys(callers):
        pieces = reordered(site.call.args, forward, params, context.meaning(owner))
        if pieces is None or site.owner.path not in context.tree.checked:
            return ()
        edits.append(call_edit(context, site.owner.path, site.call, pieces))
    return tuple(edits)


def _required_behind_default(params: list[Parameter]) -> bool:
    defaults = [parameter.default is not None for parameter in params]
    return defaults != sorted(defaults)
