"""Some ranks call a collective and others do not.

## What it does
Finds collectives of torch.distributed and accelerate under a condition that differs between ranks: a test of the
rank (`if rank == 0`, `if accelerator.is_main_process`), an early `return` or `continue` under one, or
`if p.grad is not None` in a loop over parameters. A call of a function in the same file counts as the collectives in
it, if only the rank and the number of processes decide whether they run.

Not reported: a collective that all ranks call, each in its own branch, in a loop or another function of the file, or
in the two halves of a context manager; one whose other branch runs code that the file does not show, which may hold
the same collective; one that runs only where another part of the test decides alike on all ranks; tests of the number
of processes; sends and receives; collectives of a group of their own. Where another part of the test may have all
ranks take the same side (`if everywhere or rank == 0`), the finding says which.

## Why is this bad?
A collective ends only when every rank has called it: those that have called it wait until the timeout. If the other
ranks' next collective is of the same kind, the two are matched instead and mix unrelated tensors: with `if p.grad is
not None`, the gradients of different parameters.

## Example
```python
if rank == 0:
    dist.all_reduce(loss)      # hangs: only rank 0 is here

dist.all_reduce(loss)          # right
if rank == 0:
    print(loss)
```

## Fix safety
Reported only. Call the collective on every rank, and keep in the branch what only one rank does. For gradients use
`sync_gradients(model)`, which counts a missing gradient as zeros.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext, Subject

RULE = Declaration(code="CKPT102", subject=Subject.SCRIPT, repair=RepairKind.NONE, applicability=Applicability.UNSAFE)


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding for every collective that some ranks do not call."""
    for path, script in context.tree.scripts():
        for collective in script.collectives:
            condition = f"`{collective.condition}` on line {collective.condition_line}"
            others = " or ".join(f"`{text}`" for text in collective.unless)
            unless = f", unless {others} is true" if others else ""
            waits = collective.callee.rpartition(".")[2] in ("barrier", "monitored_barrier", "wait_for_everyone")
            message = (
                f"{collective.callee}(...) runs on some ranks only, depending on {condition}{unless}: the ranks wait "
                "for each other forever, or mix different tensors; call it on all ranks, outside the condition"
            )
            message += "; where one rank is to go first, it needs the same call behind what it does" if waits else ""
            if collective.depends_on == "gradient":
                message = (
                    f"{collective.callee}(...) runs only if {condition} is so on this rank: ranks that differ hang, "
                    "or mix the gradients of different parameters; use sync_gradients(model)"
                )
            yield context.script_finding(RULE, path, collective.spot, message)
