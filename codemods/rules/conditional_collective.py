"""Some ranks call a collective and others do not.

## What it does
Finds collectives of torch.distributed and of accelerate under a condition that differs between ranks: a test on the
rank (`if rank == 0`, `if accelerator.is_main_process`), an early `return` or `continue` under one, or
`if p.grad is not None` in a loop over parameters. What all ranks call, each in its own branch, is no finding; nor are
tests on the number of processes, sends and receives, and collectives of a group of their own.

## Why is this bad?
A collective ends only when every rank has called it: the others wait until the time limit. Where the next collective
of the other ranks has the same kind, the two meet instead and mix tensors that have nothing to do with each other:
with `if p.grad is not None`, gradients of different parameters.

## Example
```python
if rank == 0:
    dist.all_reduce(loss)      # hangs: only rank 0 is here

dist.all_reduce(loss)          # right
if rank == 0:
    print(loss)
```

## Fix safety
Reported only. Call it on every rank and keep what only one rank does in the branch; for gradients use
`sync_gradients(model)`, which gives parameters without a gradient zeros.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.context import RuleContext
from ckpt_surgery.codemods.declaration import Declaration, RepairKind, Subject
from ckpt_surgery.codemods.facts.script_facts import Collective
from ckpt_surgery.codemods.finding import Applicability, Finding

RULE = Declaration(
    code="CKPT102",
    subject=Subject.SCRIPT,
    repair=RepairKind.NONE,
    applicability=Applicability.UNSAFE,
)


def find(context: RuleContext) -> Iterator[Finding]:
    """A finding for every collective that some ranks leave out."""
    for path, script in context.tree.scripts():
        for collective in script.collectives:
            yield context.script_finding(RULE, path, collective.spot, _message(collective))


def _message(collective: Collective) -> str:
    condition = f"`{collective.condition}` on line {collective.condition_line}"
    if collective.depends_on == "gradient":
        return (
            f"{collective.callee}(...) runs only where {condition} lets it: ranks that differ there hang, or mix the "
            "gradients of different parameters; use sync_gradients(model)"
        )
    return (
        f"{collective.callee}(...) runs on some ranks only, as {condition} decides: the ranks wait for each other "
        "without end, or mix different tensors; call it on all ranks, outside the condition"
    )
