"""The loss is computed by the module inside a DistributedDataParallel wrapper, so no gradient is synchronised.

## What it does
Follows a training script's values and finds a backward pass on a loss that was computed by `ddp.module(...)`,
`accelerator.unwrap_model(model)(...)`, a reference to the module from before it was wrapped, or a helper that returns
one of these. In a Trainer of transformers, the loss is what `compute_loss` returns. Not reported: code under
`no_grad`, a step before the wrapper is made, attributes (`model.module.config`), saving, a loss to which the wrapper's
own forward contributes, a branch for a single process, and scripts that reduce gradients themselves.

## Why is this bad?
The wrapper's `forward` arms the hooks that average gradients over the ranks. Without it the backward pass raises no
error and averages nothing: every rank trains a model of its own on its share of the data, and the model that is saved
has seen only one rank's share. Measured on torch 2.13 with two ranks: the gradients of all parameters differ.

## Example
```python
loss = ddp.module.compute_loss(batch)                    # each rank for itself
loss.backward()

loss = call_through_ddp(ddp, "compute_loss", batch)      # averaged
loss.backward()
```

## Fix safety
Reported only. Call the wrapper; for a method other than `forward` use `call_through_ddp`; or keep the loss and call
`sync_gradients(model)` between the backward pass and the optimizer's step.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.facts.script_facts import Spot
from ckpt_surgery.codemods.facts.syntax import Span
from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext, Subject

RULE = Declaration(code="CKPT101", subject=Subject.SCRIPT, repair=RepairKind.NONE)


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding for every forward that bypasses a wrapper and that a backward pass depends on."""
    for path, script in context.tree.scripts():
        for bypass in script.bypasses:
            backward = f"the backward on line {bypass.backward}" if bypass.backward else "the Trainer's backward"
            applicability = Applicability.UNKNOWN
            if not bypass.sure and not script.sign("ddp", "accelerate"):
                message = (
                    f"{backward} depends on {bypass.callee}(...), which reaches the model by {bypass.inner}: this "
                    "file does not show whether that is inside DistributedDataParallel, where no gradient would be "
                    "synchronised"
                )
            elif not bypass.runs:
                message = (
                    f"{bypass.callee}(...) is handed {bypass.inner}, the module inside DistributedDataParallel: if "
                    f"it runs it, {backward} synchronises no gradient"
                )
            else:
                applicability = Applicability.UNSAFE
                reached = "" if bypass.callee.startswith(bypass.inner) else f", reached by {bypass.inner}"
                through = f', or call_through_ddp(ddp, "{bypass.method}", ...)' if bypass.method else ""
                message = (
                    f"{bypass.callee}(...) runs the module inside DistributedDataParallel{reached}: {backward} "
                    f"synchronises no gradient; call the wrapper{through}, or sync_gradients(model) before the step"
                )
            yield context.script_finding(RULE, path, bypass.spot, message, applicability)
        if script.gave_up:
            spot = Spot(Span(1, 0, 1, 0), 1, "")
            message = "this script's functions call each other too much to follow where its losses come from"
            yield context.script_finding(RULE, path, spot, message, Applicability.UNKNOWN)
