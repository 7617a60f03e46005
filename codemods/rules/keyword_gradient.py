"""A tensor that carries gradient reaches a block as a keyword argument.

## What it does
Finds calls of blocks that pass hidden states, encoder hidden states, learned position biases and the like by keyword;
also, under any name, results of blocks, parameters of the model, and results of its modules with parameters.
Tables (`alibi`, `position_embeddings`) count only if they are made of a parameter that nothing freezes. The
repair makes the prefix of the signature up to the last gradient parameter positional. A gap in it is filled with the
parameter's default and a comment that names the parameter.

## Why is this bad?
A `GradientCheckpointingLayer` passes keyword arguments on in a `functools.partial`, where autograd does not see them.
With `use_reentrant=True` their gradient is silently lost, or the backward pass crashes: in transformers 5.23.0,
Llama4's vision tower loses 37 of 41 gradients, and SpeechT5 and DeBERTa-v2 crash.

## Example
```python
hidden_states = layer(hidden_states=hidden_states, attention_mask=mask)   # before
hidden_states = layer(hidden_states, attention_mask=mask)                 # after
```

## Fix safety
Safe: the same values reach the same parameters. A dict with gradient tensors that is unpacked (`layer(x, **options)`)
is left to you, and so is a call that also runs a class with other parameters, or one whose forward is not at hand. If
past state comes before the gradient parameter in the block's signature, no call can be right, and the finding refers
to CKPT005.

Information where nothing uses the reentrant mode: the package admits only transformers from 5.0 on, which do not
default to it, and no file sets `use_reentrant=True`. `apply --select CKPT003` makes the repair there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext
from ckpt_surgery.codemods.tree.arguments import ArgumentRepair
from ckpt_surgery.codemods.wording import quoted, replaced_text

RULE = Declaration(
    code="CKPT003",
    repair=RepairKind.SAFE,
    argument_repair=ArgumentRepair.GRADIENT,
    commit="{}: gradient tensors are passed by position",
)


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding for every call of a block with gradient arguments by keyword."""
    for site in context.tree.calls.all():
        plan = context.tree.calls.plan(site, frozenset({*context.argument_repairs, ArgumentRepair.GRADIENT}))
        block, spans = site.blocks[0][0].name, {argument.name: argument.span for argument in site.call.args}
        if plan.unknown:
            message = f"the arguments of {site.call.callee}(...) cannot be determined: {plan.unknown.text}"
            yield context.call_finding(RULE, site, message, Applicability.UNKNOWN)
        unpacked = context.tree.calls.unpacked(site.owner, site.call)
        fault = Applicability.UNSAFE
        if unpacked or plan.keyword_gradient:
            fault = context.if_reentrant(RULE, site.owner.path, fault)
        if unpacked:
            message = (
                f"{block} gets tensors with gradient by `{unpacked}`: the gradient is lost with use_reentrant=True"
            )
            yield context.call_finding(RULE, site, message, fault)
        for name in plan.hidden if not unpacked else ():
            message = f"`**` may pass {name} of {block} by keyword"
            yield context.call_finding(RULE, site, message, Applicability.UNKNOWN)
        arguments = None if plan.unknown else plan.arguments
        staying = {argument.keyword for argument in arguments or ()}
        names = [name for name in plan.keyword_gradient if name not in (*plan.blocked, *staying)]
        alone = [name for name in plan.keyword_gradient if name not in plan.blocked and name in staying]
        if alone:
            message = f"{block} takes {quoted(alone)} by keyword alone: the gradient is lost with use_reentrant=True"
            yield context.call_finding(RULE, site, message, fault, span=spans[alone[0]])
        if names:
            message = f"{block} gets {quoted(names)} by keyword: the gradient is lost with use_reentrant=True"
            applicability = context.if_reentrant(RULE, site.owner.path, Applicability.SAFE) if arguments else fault
            yield context.call_finding(RULE, site, message, applicability, span=spans[names[0]], arguments=arguments)
        behind = [name for name in plan.blocked if name in plan.keyword_gradient]
        if behind:
            message = (
                f"{block} gets {quoted(behind)} by keyword: with use_reentrant=True the gradient is lost, or the "
                "backward pass stops; its signature has past state before it, and CKPT005 reorders it (--unsafe)"
            )
            yield replace(context.call_finding(RULE, site, message, fault, span=spans[behind[0]]), follows="CKPT005")
    for owner, call, ref in context.tree.calls.replaced():
        message = f"the arguments of {call.callee}(...) cannot be determined: {replaced_text(ref.name)}"
        line = call.statement.line
        yield context.finding(RULE, owner.path, call.span, owner.name, message, Applicability.UNKNOWN, first_line=line)
