"""Non-reentrant checkpointing in a script that trains PEFT adapters under DeepSpeed ZeRO-3.

## What it does
Finds `use_reentrant=False` in scripts that train PEFT adapters (`get_peft_model`, `peft_config=`, `add_adapter`, or an
option like `use_peft` in a command) under DeepSpeed ZeRO-3. That shows in a `DeepSpeedPlugin`, in `deepspeed=`, in
a command of the script's header, or in a configuration file that one of these names.

Information only: checkpointing switched on without options, which is non-reentrant since transformers 5.0; those
Trainers of trl that change the mode themselves; and adapters that only an option asks for.

Not reported: ZeRO of an unknown stage, frozen parameters without PEFT, and checkpointing without options in
a package whose requirements rule out transformers 5.

## Why is this bad?
ZeRO-3 gathers a layer's parameters for the recompute and frees them afterwards, in place. Torch's non-reentrant mode
keeps references to the frozen ones and finds them empty: the backward pass stops with "CheckpointError: Recomputed
values for the following tensors have different metadata" (shape 1024 saved, 0 recomputed; transformers issue 47254).
It keeps detached copies of trained parameters, so full fine-tuning works. The reentrant mode compares nothing and
trains correctly. Under ZeRO-2 parameters are never freed.

DeepSpeed 0.19.3 fixed it (DeepSpeed pull request 8148). Some Trainers of trl set `use_reentrant=True` themselves:
SFTTrainer since 0.28 (trl pull request 4951), those for DPO, GRPO, RLOO, Reward and KTO since 1.9 (6356), and
DistillationTrainer in 1.12. The others leave it to the script.

## Example
```python
training_args.gradient_checkpointing_kwargs = {"use_reentrant": False}    # before
training_args.gradient_checkpointing_kwargs = {"use_reentrant": True}     # after
```

## Fix safety
Unsafe: the script may also run under DistributedDataParallel, where the reentrant mode goes wrong (see
[CKPT104](CKPT104.md)). If the script itself shows another way to run it, the choice is left to you. From DeepSpeed
0.19.3 on, nothing needs to change. The reentrant mode needs embeddings that need gradient (see
[CKPT108](CKPT108.md)).
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.facts.launch_facts import Launch, Strategy
from ckpt_surgery.codemods.facts.script_facts import ScriptFacts
from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext, Subject
from ckpt_surgery.codemods.repairs.calls import name_repair
from ckpt_surgery.codemods.scripts.names import words
from ckpt_surgery.codemods.scripts.setups import known_launches
from ckpt_surgery.codemods.tree.requirements import only_before
from ckpt_surgery.model_patches.release_names import NON_REENTRANT_SINCE

RULE = Declaration(code="CKPT105", subject=Subject.SCRIPT, repair=RepairKind.UNSAFE)
_FORCED = words("SFTTrainer DPOTrainer GRPOTrainer RLOOTrainer RewardTrainer KTOTrainer DistillationTrainer")
"""The Trainers of trl that set `use_reentrant=True` themselves."""
_STOPS = "the backward pass stops with CheckpointError"
_ADVICE = "update DeepSpeed to 0.19.3, or pass use_reentrant=True"


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding for every non-reentrant checkpoint in a script that trains adapters under ZeRO-3."""
    for path, script in context.tree.scripts():
        if script.modes or script.switches:
            launches = known_launches(path, script, context.tree.configuration)
            for launch in launches:
                sign = script.sign("adapters", "some_adapters")
                adapters = sign.place if sign else ""
                if launch.adapters and not script.sign("adapters"):
                    adapters = f"{launch.adapters} on line {launch.line}"
                if adapters and launch.setup.strategy is Strategy.ZERO and launch.setup.stage == 3:
                    only = all(other.setup == launch.setup for other in launches) and not launch.conditional
                    yield from _findings(context, path, script, launch, adapters, repair=only)
                    break


def _findings(
    context: RuleContext, path: str, script: ScriptFacts, launch: Launch, adapters: str, *, repair: bool
) -> Iterator[Finding]:
    where = f"under {launch.setup} ({launch.place}), before DeepSpeed 0.19.3"
    sure = bool(launch.adapters or script.sign("adapters"))
    # Trainers of `trl.experimental` do not set the mode
    origins = [origin.rpartition(".") for origin in script.trainers]
    forced = bool(origins) and all(
        package.partition(".")[0] == "trl" and "experimental" not in package and name in _FORCED
        for package, _, name in origins
    )
    advice = ", or trl sets it to True (its SFTTrainer since 0.28, the others since 1.9)" if forced else f"; {_ADVICE}"
    for mode in script.modes:
        if mode.mode == "non_reentrant":
            message = f"use_reentrant=False with PEFT adapters ({adapters}) {where}: {_STOPS}{advice}"
            applicability = Applicability.UNSAFE if sure and not forced else Applicability.INFO
            repairs = (
                (name_repair(context.tree, path, mode.spot.span, "True"),) if sure and repair and not forced else ()
            )
            yield context.script_finding(RULE, path, mode.spot, message, applicability, repairs)
    if forced or script.modes or only_before(NON_REENTRANT_SINCE, context.tree.layers.required(path)):
        return
    for switch in script.switches:
        if not switch.options and (switch.kind == "method" or script.trainers):
            message = (
                f"{switch.text} is not reentrant since transformers 5.0; with PEFT adapters ({adapters}) {where}, "
                f"{_STOPS}: {_ADVICE}"
            )
            yield context.script_finding(RULE, path, switch.spot, message, Applicability.INFO)
