"""Checkpointing is switched on twice: FSDP's own, and that of transformers.

## What it does
Finds `gradient_checkpointing=True` (or `activation_checkpointing=True`) among a Trainer's arguments, and calls of
`gradient_checkpointing_enable()`, in scripts that also switch on FSDP's checkpointing: in a
`FullyShardedDataParallelPlugin`, in `fsdp_config`, or by accelerate's `fsdp_activation_checkpointing`, in a command of
the script's header or in a configuration file that the script or a command names. Switches under a test are left
alone, unless a command sets them.

## Why is this bad?
A Trainer whose arguments ask for both stops with `ValueError` (transformers 4.57.6 and 5.23.0). Nothing notices a call
of `gradient_checkpointing_enable()`: FSDP then checkpoints blocks that checkpoint themselves. Measured on torch 2.13
with a Llama of two blocks: with `use_reentrant=True`, the default up to transformers 4.57, each block runs its forward
three times a step instead of twice. Neither mode saves a byte more; the gradients stay the same.

## Example
```python
args = TrainingArguments("out", fsdp="full_shard", fsdp_config={"activation_checkpointing": True},
                         gradient_checkpointing=True)     # before
args = TrainingArguments("out", fsdp="full_shard", fsdp_config={"activation_checkpointing": True},
                         gradient_checkpointing=False)    # after
```

## Fix safety
Unsafe: a run without FSDP, or with another configuration, is no longer checkpointed. Calls of
`gradient_checkpointing_enable()` are left to you, and are information only, unless the script also sets
`use_reentrant=True`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.facts.script_facts import Spot
from ckpt_surgery.codemods.facts.syntax import Span
from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext, Subject
from ckpt_surgery.codemods.repair import SourceRepair
from ckpt_surgery.codemods.repairs.calls import name_repair
from ckpt_surgery.codemods.scripts.setups import known_launches

RULE = Declaration(code="CKPT106", subject=Subject.SCRIPT, repair=RepairKind.UNSAFE)
_REFUSED = "a Trainer stops with ValueError; leave it to FSDP"


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding for every checkpointing switch to which a launch of the script adds FSDP's own."""
    for path, script in context.tree.scripts():
        launches = known_launches(path, script, context.tree.configuration)
        doubling = [launch for launch in launches if launch.setup.activation_checkpointing]
        for launch in doubling[:1]:
            for switch in script.switches:
                trained = switch.kind == "method" or script.trainers
                if not trained or (switch.conditional and not launch.checkpointing):
                    continue
                message = f"{switch.text} beside FSDP's activation checkpointing ({launch.place})"
                repairs: tuple[SourceRepair, ...] = ()
                applicability = Applicability.UNSAFE
                if switch.kind == "argument":
                    message += f": {_REFUSED}"
                    if not launch.conditional:
                        repairs = (name_repair(context.tree, path, switch.spot.span, "False"),)
                else:
                    where = ""
                    if not any(mode.mode == "reentrant" for mode in script.modes):
                        applicability = Applicability.INFO
                        where = "up to transformers 4.57, where it is reentrant, "
                    message += (
                        f" checkpoints the blocks twice: no more memory is saved, and {where}each block runs its "
                        "forward three times a step; leave it to FSDP"
                    )
                yield context.script_finding(RULE, path, switch.spot, message, applicability, repairs)
        if not script.switches and script.trainers:
            for launch in doubling:
                if launch.checkpointing:
                    spot = Spot(Span(launch.line, 0, launch.line, 0), launch.line, "")
                    message = f"this command switches on gradient checkpointing and that of FSDP: {_REFUSED}"
                    yield context.script_finding(RULE, path, spot, message, Applicability.UNSAFE)
