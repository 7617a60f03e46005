"""A cache or recurrent state reaches a block as a positional argument.

## What it does
Finds calls of blocks that pass past state by position and makes it, and every argument behind it, a keyword.

## Why is this bad?
A `GradientCheckpointingLayer` drops past state that comes as a keyword it knows. By position it goes
through the checkpoint: the recompute in the backward pass writes the cache a second time, and what was
written first is part of the graph.

## Example
```python
outputs = layer(hidden_states, attention_mask, past_key_values, output_attentions)                # before
outputs = layer(
    hidden_states, attention_mask, past_key_values=past_key_values, output_attentions=output_attentions
)                                                                                                 # after
```

## Fix safety
Safe: the same values reach the same parameters. Where a gradient parameter stands behind the past state in
the block's signature, both cannot be right in one call; the finding then refers to CKPT005.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.context import Context
from ckpt_surgery.codemods.declaration import Declaration, Observation, RepairKind
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.codemods.tree.arguments import Piece, Plan, bind
from ckpt_surgery.codemods.tree.call_sites import Site, plan_site, site_finding, sites

RULE = Declaration(
    code="CKPT004",
    repair=RepairKind.SAFE,
    commit="{}: past state is passed by keyword",
    causes={Observation.POSITIONAL_PAST_STATE: "{block} gets its past state `{argument}` by position."},
)
_GRADIENT = "CKPT003"


def find(context: Context) -> Iterator[Finding]:
    """A finding for every call of a block with past state by position."""
    for site in sites(context):
        yield from _findings(context, site)


def lasting(context: Context, site: Site) -> Plan | None:
    """The plan of a call that still passes past state by position after all safe repairs; None for any other."""
    plan = _fault(context, site)
    return plan if plan and _repair(plan) is None else None


def _fault(context: Context, site: Site) -> Plan | None:
    """The plan of a call that passes past state by position where that does harm."""
    plan = plan_site(context, site, gradient=_GRADIENT in context.selected, past=True)
    block, _ = site.blocks[0]
    harmless = not plan.positional_past or context.tree.flag(block, "_can_checkpoint_with_cache") == "True"
    return None if harmless else plan


def _repair(plan: Plan) -> tuple[Piece, ...] | None:
    return None if plan.unknown or plan.blocked else plan.pieces


def _findings(context: Context, site: Site) -> Iterator[Finding]:
    plan = _fault(context, site)
    if plan is None:
        return
    block, forward = site.blocks[0]
    bound = bind(site.call.args, forward)
    first = bound[plan.positional_past[0]] if not isinstance(bound, str) else 0
    span = site.call.args[first].span
    names = " and ".join(f"`{name}`" for name in plan.positional_past)
    message = f"{block.name} gets {names} by position: the recompute writes it a second time"
    pieces = _repair(plan)
    if plan.blocked:
        message += f"; `{plan.blocked[0]}` stands behind it in the signature: CKPT005 reorders it (--unsafe)"
    applicability = Applicability.SAFE if pieces else Applicability.UNSAFE
    yield site_finding(context, site, RULE, message, applicability, span=span, pieces=pieces)
