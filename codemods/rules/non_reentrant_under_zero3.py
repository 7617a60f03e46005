"""PEFT adapters trained under DeepSpeed ZeRO-3 with checkpointing that is not reentrant.

## What it does
Finds `use_reentrant=False` in scripts that train adapters of PEFT (`get_peft_model`, `peft_config=`, `add_adapter`, or
`--use_peft` and the like in a command) under DeepSpeed ZeRO-3, as a `DeepSpeedPlugin`, `deepspeed=`, a command in the
script's header or a configuration file named there shows. Checkpointing that is switched on without options is
information only: it is not reentrant since transformers 5.0. So is `use_reentrant=False` for the Trainers of trl that
turn it into True themselves, and where an option decides whether there are adapters.

Not reported: a ZeRO whose stage nothing shows, and frozen parameters without PEFT.

## Why is this bad?
ZeRO-3 gathers a layer's parameters for the recompute and frees them after it, in place. Torch's non-reentrant mode
keeps the frozen ones by reference and then finds them empty: the backward pass stops with "CheckpointError: Recomputed
values for the following tensors have different metadata" (shape 1024 saved, 0 recomputed; transformers issue 47254).
Parameters that are trained are kept apart, so full fine-tuning is not concerned, nor is ZeRO-2. The reentrant mode
compares nothing and trains correctly.

DeepSpeed 0.19.3 repaired it (DeepSpeed pull request 8148). trl sets `use_reentrant=True` itself in this case: its
SFTTrainer since 0.28 (trl pull request 4951), those for DPO, GRPO, RLOO, Reward and KTO since 1.9 (6356), that for
distillation in 1.12. Its other Trainers leave it to the script.

## Example
```python
training_args.gradient_checkpointing_kwargs = {"use_reentrant": False}    # before
training_args.gradient_checkpointing_kwargs = {"use_reentrant": True}     # after
```

## Fix safety
Unsafe: the script may also be run in other ways, and under DistributedDataParallel the reentrant mode goes wrong (see
[CKPT104](CKPT104.md)). Where the script shows another way, it is left to you. DeepSpeed 0.19.3 needs no change.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.context import RuleContext
from ckpt_surgery.codemods.declaration import Declaration, RepairKind, Subject
from ckpt_surgery.codemods.facts.launch_facts import Strategy
from ckpt_surgery.codemods.facts.script_facts import ScriptFacts
from ckpt_surgery.codemods.finding import Applicability, Edit, Finding
from ckpt_surgery.codemods.scripts.names import words
from ckpt_surgery.codemods.scripts.setups import KnownLaunch, known_launches, setup_text
from ckpt_surgery.codemods.scripts.signs import sign_text

RULE = Declaration(
    code="CKPT105",
    subject=Subject.SCRIPT,
    repair=RepairKind.UNSAFE,
)
_FORCED = words("SFTTrainer DPOTrainer GRPOTrainer RLOOTrainer RewardTrainer KTOTrainer DistillationTrainer")
"""The Trainers of trl that set `use_reentrant=True` themselves."""
_STOPS = "the backward pass stops with CheckpointError"
_ADVICE = "update DeepSpeed to 0.19.3, or pass use_reentrant=True"


def find(context: RuleContext) -> Iterator[Finding]:
    """A finding for every checkpoint of a script that surely is not reentrant, and that surely runs under ZeRO-3."""
    for path, script in context.tree.scripts():
        if not script.modes and not script.switches:
            continue
        launches = known_launches(path, script, context.tree.configuration)
        for launch in launches:
            if launch.setup.strategy is Strategy.ZERO and launch.setup.stage == 3:
                adapters = _adapters(launch, script)
                if adapters:
                    only = all(other.setup == launch.setup for other in launches) and not launch.launch.conditional
                    yield from _findings(context, path, script, launch, adapters, repair=only)
                    break


def _adapters(launch: KnownLaunch, script: ScriptFacts) -> str:
    """What shows that the launch trains adapters, or may; empty where nothing does."""
    sign = script.sign("adapters", "some_adapters")
    if launch.launch.adapters and not script.sign("adapters"):
        return f"{launch.launch.adapters} on line {launch.launch.line}"
    return sign_text(sign) if sign else ""


def _sets_the_mode(origin: str) -> bool:
    """Whether a Trainer, by its full name, is one of those of trl; those of `trl.experimental` are not."""
    package, _, name = origin.rpartition(".")
    return package.partition(".")[0] == "trl" and "experimental" not in package and name in _FORCED


def _findings(
    context: RuleContext, path: str, script: ScriptFacts, launch: KnownLaunch, adapters: str, *, repair: bool
) -> Iterator[Finding]:
    where = f"under {setup_text(launch.setup)} ({launch.place}), before DeepSpeed 0.19.3"
    sure = bool(launch.launch.adapters or script.sign("adapters"))
    forced = bool(script.trainers) and all(map(_sets_the_mode, script.trainers))
    for mode in script.modes:
        if mode.mode == "non_reentrant":
            fault = f"use_reentrant=False with PEFT adapters ({adapters}) {where}: {_STOPS}"
            if forced:
                message = f"{fault}, or trl sets it to True (its SFTTrainer since 0.28, the others since 1.9)"
                yield context.script_finding(RULE, path, mode.spot, message, Applicability.INFO)
                continue
            start, end = context.tree.source(path).range(mode.spot.span)
            edits = (Edit(path, start, end, "True"),) if sure and repair else ()
            applicability = Applicability.UNSAFE if sure else Applicability.INFO
            yield context.script_finding(RULE, path, mode.spot, f"{fault}; {_ADVICE}", applicability, edits)
    if forced or script.modes:
        return
    for switch in script.switches:
        if not switch.options and (switch.kind == "method" or script.trainers):
            message = (
                f"{switch.text} is not reentrant since transformers 5.0; with PEFT adapters ({adapters}) {where}, "
                f"{_STOPS}: {_ADVICE}"
            )
            yield context.script_finding(RULE, path, switch.spot, message, Applicability.INFO)
