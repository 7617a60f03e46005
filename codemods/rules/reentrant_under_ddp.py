"""Reentrant checkpointing in a script that trains under DistributedDataParallel.

## What it does
Finds `use_reentrant=True` (in `checkpoint(...)`, in `gradient_checkpointing_kwargs`, in any dict of options) and calls
of `torch.utils.checkpoint.checkpoint` without the option, which means True up to torch 2.13, in scripts that wrap in
DistributedDataParallel, prepare with accelerate, or start a Trainer in several processes. A
`gradient_checkpointing_enable()` without options is information only: it means True up to transformers 4.57. Not
reported: that call in a package whose requirements rule out transformers before 5.0.

Which launcher runs the script is read from its calls (`DistributedDataParallel(...)`, `deepspeed=`, `fsdp=`, plugins),
from the commands in its header and comments, and from the configuration files that these name, as long as they lie in
the script's folder or one above it. A script that only runs under DeepSpeed ZeRO or FSDP gets no finding.

## Why is this bad?
Reentrant checkpointing runs a backward pass inside the backward pass, which the hooks of DistributedDataParallel do
not expect. Measured on torch 2.13 with two ranks: with `find_unused_parameters=True` the step fails ("mark a variable
ready only once"); a block that is checkpointed twice in a step silently ends with different gradients on each rank; a
block whose input needs no gradient gets none at all. In the non-reentrant mode all of these are right.

## Example
```python
hidden_states = checkpoint(block, hidden_states, use_reentrant=True)     # before
hidden_states = checkpoint(block, hidden_states, use_reentrant=False)    # after
```

## Fix safety
Safe if the script wraps in DistributedDataParallel itself, or if every command that it shows runs it that way: both
modes run the same operations on the same values. The non-reentrant mode also raises if the recompute makes tensors of
other shapes, a fault that the reentrant mode does not notice.

Unsafe if the launcher decides and nothing shows which one it is: DeepSpeed ZeRO-3 before 0.19.3 needs the reentrant
mode to train PEFT adapters (see [CKPT105](CKPT105.md)). If the script shows that it also runs that way, the choice is
left to you.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt_surgery.codemods.facts.launch_facts import Launch, Strategy
from ckpt_surgery.codemods.facts.script_facts import ScriptFacts, Sign
from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext, Subject
from ckpt_surgery.codemods.repair import NewArgument, SourceRepair
from ckpt_surgery.codemods.repairs.calls import call_repair, name_repair
from ckpt_surgery.codemods.scripts.setups import known_launches
from ckpt_surgery.codemods.tree.requirements import only_since
from ckpt_surgery.model_patches.release_names import NON_REENTRANT_SINCE

RULE = Declaration(code="CKPT104", subject=Subject.SCRIPT, repair=RepairKind.SAFE)
_WRAPPER = Strategy.DDP.value


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding for every reentrant checkpoint in a script that trains, or may train, under the wrapper."""
    for path, script in context.tree.scripts():
        sign = script.data_parallel
        if sign and (script.modes or script.switches):
            launches = known_launches(path, script, context.tree.configuration)
            may_wrap = any(launch.setup.strategy in (Strategy.DDP, None) for launch in launches)
            if may_wrap or all(launch.conditional for launch in launches):
                yield from _findings(context, path, script, sign, launches)


def _findings(
    context: RuleContext, path: str, script: ScriptFacts, sign: Sign, launches: Sequence[Launch]
) -> Iterator[Finding]:
    switches = [switch for switch in script.switches if switch.kind == "method" and not switch.options]
    if switches and not only_since(NON_REENTRANT_SINCE, context.tree.layers.required(path)):
        for switch in switches:
            message = (
                f"{switch.text} is reentrant up to transformers 4.57: under {_WRAPPER} ({sign.place}) it goes wrong "
                "with unused parameters or a block that runs twice; pass "
                'gradient_checkpointing_kwargs={"use_reentrant": False}, which 4.35 and later take'
            )
            yield context.script_finding(RULE, path, switch.spot, message, Applicability.INFO)
    sure = bool(launches) and all(launch.setup.strategy is Strategy.DDP for launch in launches)
    zero = [each for each in launches if each.setup.strategy is Strategy.ZERO and each.setup.stage in (3, None)]
    left_alone = any(launch.adapters or script.sign("adapters", "some_adapters") for launch in zero)
    for mode in script.modes:
        if mode.mode == "non_reentrant":
            continue
        subject = "use_reentrant=True" if mode.mode == "reentrant" else f"{mode.callee}(...) without use_reentrant"
        if sure:
            message = (
                f"{subject} is reentrant under {_WRAPPER} ({sign.place}): it fails with unused parameters, and "
                "silently gives each rank different gradients if a block runs twice; use_reentrant=False computes the "
                "same values"
            )
        else:
            message = (
                f"{subject} is reentrant: under {_WRAPPER} it fails with unused parameters or a block that runs "
                f"twice, but PEFT adapters under DeepSpeed ZeRO-3 (before 0.19.3) need it; {_doubt(sign, launches)}"
            )
        applicability = Applicability.SAFE if sure else Applicability.UNSAFE
        repairs: tuple[SourceRepair, ...] = ()
        if not left_alone and mode.mode == "reentrant":
            repairs = (name_repair(context.tree, path, mode.spot.span, "False"),)
        elif not left_alone:
            arguments = [NewArgument(position, argument.name) for position, argument in enumerate(mode.args)]
            option = NewArgument(None, "use_reentrant", "False")
            repairs = (call_repair(context.tree, path, mode.spot.span, (*arguments, option)),)
        yield context.script_finding(RULE, path, mode.spot, message, applicability, repairs)


def _doubt(sign: Sign, launches: Sequence[Launch]) -> str:
    """Return why it is not known which wrapper this script runs under."""
    for launch in launches:
        if launch.unread:
            return f"what {launch.unread} (line {launch.line}) asks for is not known"
    for launch in launches:
        if launch.setup.strategy not in (Strategy.DDP, None):
            return f"this script also runs under {launch.setup} ({launch.place})"
    return f"nothing here shows which of them runs the script ({sign.place})"
