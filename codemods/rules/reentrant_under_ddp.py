"""Reentrant checkpointing in a script that trains under DistributedDataParallel.

## What it does
Finds `use_reentrant=True` (in `checkpoint(...)`, in `gradient_checkpointing_kwargs`, in any dict of options) and calls
of `torch.utils.checkpoint.checkpoint` without the option, which means True up to torch 2.13, in scripts that wrap in
DistributedDataParallel, prepare with accelerate, or start a Trainer in several processes. A
`gradient_checkpointing_enable()` without options is information only: it means True up to transformers 4.57.

## Why is this bad?
Reentrant checkpointing runs a backward pass inside the backward pass, which the hooks of DistributedDataParallel do
not expect. Measured on torch 2.13 with two ranks: with `find_unused_parameters=True` the step fails ("mark a variable
ready only once"); a block that is checkpointed twice in a step silently ends with different gradients on each rank; a
block whose input needs no gradient gets none at all. All of these are right without reentrance.

## Example
```python
hidden_states = checkpoint(block, hidden_states, use_reentrant=True)     # before
hidden_states = checkpoint(block, hidden_states, use_reentrant=False)    # after
```

## Fix safety
Safe: both modes run the same operations on the same values. The non-reentrant mode also raises if the recompute makes
tensors of other shapes, a fault that the reentrant mode does not notice.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.context import RuleContext
from ckpt_surgery.codemods.declaration import Declaration, RepairKind, Subject
from ckpt_surgery.codemods.edits.call_edit import call_edit
from ckpt_surgery.codemods.facts.script_facts import ReentrantCheckpoint
from ckpt_surgery.codemods.finding import Applicability, Edit, Finding
from ckpt_surgery.codemods.scripts.signs import data_parallel, sign_text
from ckpt_surgery.codemods.tree.arguments import NewArgument

RULE = Declaration(
    code="CKPT104",
    subject=Subject.SCRIPT,
    repair=RepairKind.SAFE,
)


def find(context: RuleContext) -> Iterator[Finding]:
    """A finding for every reentrant checkpoint in a script that trains under the wrapper."""
    for path, script in context.tree.scripts():
        sign = data_parallel(script)
        if sign:
            for reentrant in script.reentrant:
                yield _finding(context, path, reentrant, f"DistributedDataParallel ({sign_text(sign)})")


def _finding(context: RuleContext, path: str, reentrant: ReentrantCheckpoint, wrapper: str) -> Finding:
    if reentrant.kind == "enable":
        message = (
            f"{reentrant.callee}() is reentrant up to transformers 4.57, which does not work with {wrapper}: pass "
            'gradient_checkpointing_kwargs={"use_reentrant": False}'
        )
        return context.script_finding(RULE, path, reentrant.spot, message, Applicability.INFO)
    what = "use_reentrant=True" if reentrant.kind == "true" else f"{reentrant.callee}(...) without use_reentrant"
    message = (
        f"{what} is reentrant under {wrapper}: it fails with unused parameters, and silently gives each rank "
        "different gradients if a block runs twice; use_reentrant=False computes the same values"
    )
    return context.script_finding(
        RULE, path, reentrant.spot, message, Applicability.SAFE, (_edit(context, path, reentrant),)
    )


def _edit(context: RuleContext, path: str, reentrant: ReentrantCheckpoint) -> Edit:
    """`True` becomes `False`; where the option is left out it comes last."""
    if reentrant.kind == "true":
        start, end = context.tree.source(path).range(reentrant.spot.span)
        return Edit(path, start, end, "False")
    arguments = [NewArgument(position, argument.name) for position, argument in enumerate(reentrant.args)]
    option = NewArgument(None, "use_reentrant", "False")
    return call_edit(context.tree, path, reentrant.spot.span, (*arguments, option))
