"""A model that several processes train is split over all devices in each of them.

## What it does
Finds `from_pretrained(..., device_map="auto")` (also "balanced", "balanced_low_0" and "sequential", through a name, a
dict of options or an option's default) in a script that trains in several processes: it wraps in
DistributedDataParallel, prepares with accelerate, makes a process group, or reads what torchrun sets. A script with a
`Trainer` and no sign of several processes gets information only; one that trains nothing is not reported. Nor
are models that are only merged or evaluated, and loads under a test of the number of processes.

## Why is this bad?
Such a `device_map` spreads the layers over every device that the process sees. With one process per device, all
processes put their layers on the same devices: the first ones run out of memory, and DistributedDataParallel refuses a
module on several devices or, with a quantised model, the Trainer stops.

## Example
```python
model = AutoModelForCausalLM.from_pretrained(name, device_map="auto")
model = AutoModelForCausalLM.from_pretrained(name, device_map=local_device_map())
```

## Fix safety
Reported only: `local_device_map()` of ckpt_surgery, or `{"": local_rank}`, puts each process's model on one device,
its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext, Subject

RULE = Declaration(code="CKPT103", subject=Subject.SCRIPT, repair=RepairKind.NONE)
_ADVICE = 'use device_map=local_device_map(), or {"": local_rank}'


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding for every such load in a script that trains."""
    for path, script in context.tree.scripts():
        sign = script.several_processes
        for load in script.loads if sign or script.sign("trainer") else ():
            default = " (the option's default)" if load.default else ""
            what = f'{load.callee}(..., device_map="{load.placement}"){default}'
            fault = "is right for one process; of several, each would spread the model over all devices"
            if sign:
                place = f"in every process of a distributed script ({sign.place})"
                fault = f"spreads the model over all devices {place}"
            applicability = Applicability.UNSAFE if sign and not load.default else Applicability.INFO
            yield context.script_finding(RULE, path, load.spot, f"{what} {fault}: {_ADVICE}", applicability)
