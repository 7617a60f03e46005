"""A tensor that carries gradient reaches a block as a keyword argument.

## What it does
Finds calls of blocks that pass hidden states, encoder hidden states, learned position biases and the like
by keyword, and makes them positional: the prefix of the signature up to the last gradient parameter. A gap
in that prefix is filled with the parameter's default and a comment naming it.

## Why is this bad?
A `GradientCheckpointingLayer` hands keyword arguments over in a `functools.partial`, out of autograd's
sight. With `use_reentrant=True` their gradient is lost without a word, or the backward pass crashes: on
transformers 5.23.0 Llama4's vision tower loses 37 of 41 gradients, and SpeechT5 and DeBERTa-v2 crash.

## Example
```python
hidden_states = layer(hidden_states=hidden_states, attention_mask=mask)   # before
hidden_states = layer(hidden_states, attention_mask=mask)                 # after
```

## Fix safety
Safe: the same values reach the same parameters. Where past state stands in front of the gradient parameter
in the block's signature no call can be right; the finding then refers to CKPT005.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.context import Context
from ckpt_surgery.codemods.declaration import Declaration, Observation, RepairKind
from ckpt_surgery.codemods.facts.file_facts import Arg, Span
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.codemods.rules import positional_past_state
from ckpt_surgery.codemods.tree.call_sites import Site, plan_site, site_finding, sites

RULE = Declaration(
    code="CKPT003",
    repair=RepairKind.SAFE,
    commit="{}: gradient tensors are passed by position",
    causes={
        Observation.RETURNED_KEYWORD: (
            "{block} takes `{argument}` by keyword and returns it: its own output becomes part of what made it."
        ),
        Observation.KEYWORD_GRADIENT: (
            "`{argument}` reaches {block} by keyword, where reentrant checkpointing sees no gradient."
        ),
    },
)


def find(context: Context) -> Iterator[Finding]:
    """A finding for every call of a block with gradient arguments by keyword."""
    for site in sites(context):
        yield from _findings(context, site)


def _findings(context: Context, site: Site) -> Iterator[Finding]:
    past = positional_past_state.RULE.code in context.selected
    plan = plan_site(context, site, gradient=True, past=past)
    names = [name for name in plan.keyword_gradient if name not in plan.blocked]
    block = site.blocks[0][0].name
    if plan.unknown:
        message = f"the arguments of {site.call.callee}(...) cannot be told: {plan.unknown}"
        yield site_finding(context, site, RULE, message, Applicability.UNKNOWN)
    for name in plan.hidden:
        message = f"`**` may pass {name} of {block} by keyword"
        yield site_finding(context, site, RULE, message, Applicability.UNKNOWN)
    if names:
        message = f"{block} gets {_listed(names)} by keyword: the gradient is lost with use_reentrant=True"
        pieces = None if plan.unknown else plan.pieces
        applicability = Applicability.SAFE if pieces else Applicability.UNSAFE
        span = _argument(site.call.args, names[0])
        yield site_finding(context, site, RULE, message, applicability, span=span, pieces=pieces)
    behind = [name for name in plan.blocked if name in plan.keyword_gradient]
    if behind:
        message = (
            f"{block} gets {_listed(behind)} by keyword, and its signature has past state in front: "
            "CKPT005 reorders it (--unsafe)"
        )
        span = _argument(site.call.args, behind[0])
        yield site_finding(context, site, RULE, message, Applicability.UNSAFE, span=span)


def _argument(arguments: tuple[Arg, ...], name: str) -> Span | None:
    return next((argument.span for argument in arguments if argument.name == name), None)


def _listed(names: list[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)
