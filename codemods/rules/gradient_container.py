"""Gradient tensors reach a block inside a list, tuple or dict.

## What it does
Reports calls of blocks that pass a literal list, tuple or dict for a gradient parameter, a list of what earlier blocks
returned, or anything for a parameter that is known to hold gradient tensors in a container.

## Why is this bad?
With `use_reentrant=True` the checkpoint sees a tensor only if it is an argument itself: tensors inside a container
lose their gradient, or the backward pass fails if two blocks share one. If blocks write into a dict, the recompute
writes into it again: Gemma3n and Gemma4 share `shared_kv_states` that way, and every gradient is there, with a wrong
value. MLCD passes a learned class position inside the `position_embeddings` tuple.

## Example
```python
hidden_states = layer(hidden_states, position_embeddings=(learned.cos(), learned.sin()))
```

## Fix safety
Reported only: the block's signature would have to change. Train with `use_reentrant=False`. Information where nothing
uses the reentrant mode (see CKPT003).
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext
from ckpt_surgery.codemods.tree.arguments import bind
from ckpt_surgery.codemods.wording import Because
from ckpt_surgery.model_patches import family_facts

RULE = Declaration(code="CKPT007", repair=RepairKind.NONE)


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding for every container of gradient tensors that a block is given."""
    for site in context.tree.calls.all():
        block, forward = site.blocks[0]
        positions = dict.fromkeys(context.tree.calls.plan(site).containers)
        bound = bind(site.call.args, forward)
        if not isinstance(bound, Because):
            containers = family_facts(block.path).containers
            positions |= {position: None for name, position in bound.items() if name in containers}
        for argument in (site.call.args[position] for position in positions):
            if argument.is_value:
                message = f"{block.name} gets gradient tensors inside a container, `{argument.text}`"
                message += ": with use_reentrant=True their gradient is lost or wrong, or the backward pass stops"
                fault = context.if_reentrant(RULE, site.owner.path, Applicability.UNSAFE)
                yield context.call_finding(RULE, site, message, fault, span=argument.span)
