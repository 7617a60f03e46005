"""A cache or recurrent state reaches a block as a positional argument.

## What it does
Finds calls of blocks that pass past state by position. The repair passes it, and every argument after it, by keyword.

## Why is this bad?
A `GradientCheckpointingLayer` drops past state that is passed under a keyword it knows. Passed by position, past state
goes through the checkpoint: the recompute in the backward pass writes the cache a second time, and what was written
first is part of the graph.

## Example
```python
outputs = layer(hidden_states, attention_mask, past_key_values, output_attentions)                # before
outputs = layer(
    hidden_states, attention_mask, past_key_values=past_key_values, output_attentions=output_attentions
)                                                                                                 # after
```

## Fix safety
Safe: the same values reach the same parameters. If a gradient parameter comes after the past state in the block's
signature, no call can pass both correctly, and the finding refers to CKPT005. Unsafe if an argument that would become
a keyword with it may be a tensor with a gradient (its name does not tell): with `use_reentrant=True` training would
fail. Not repaired if the call also runs a class that takes other parameters, or whose forward is not at hand.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext
from ckpt_surgery.codemods.tree.arguments import ArgumentRepair, bind
from ckpt_surgery.codemods.wording import Because, quoted

RULE = Declaration(
    code="CKPT004",
    repair=RepairKind.SAFE,
    argument_repair=ArgumentRepair.PAST_STATE,
    commit="{}: past state is passed by keyword",
)


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding for every call of a block that passes past state by position."""
    for site in context.tree.calls.all():
        plan = context.tree.calls.plan_of_past_state(site, context.argument_repairs)
        if plan is None:
            continue
        block, forward = site.blocks[0]
        bound = bind(site.call.args, forward)
        first = 0 if isinstance(bound, Because) else bound[plan.positional_past[0]]
        message = (
            f"{block.name} gets {quoted(plan.positional_past)} by position: the recompute writes it a second time"
        )
        if plan.blocked:
            message += f"; `{plan.blocked[0]}` comes after it in the signature: CKPT005 reorders it (--unsafe)"
        if plan.unknown:
            message += f"; not repaired: {plan.unknown.text}"
        if plan.doubtful:
            message += f"; {quoted(plan.doubtful)} would be by keyword, too: unsafe where it carries a gradient"
        applicability = Applicability.SAFE if plan.is_safe else Applicability.UNSAFE
        span = site.call.args[first].span
        yield context.call_finding(RULE, site, message, applicability, span=span, arguments=plan.repair)
