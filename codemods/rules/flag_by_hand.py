"""The flag of a transformers model is set by hand, and none of its layers checkpoints.

## What it does
Finds `model.gradient_checkpointing = True` where the file makes `model` itself, of a class that it imports from
transformers: `SiglipVisionModel(config)`, `AutoModel.from_pretrained(name)`. Left alone are modules of your own,
models that may come with remote code, and flags that the file also reads or sets beside a call of the method.

## Why is this bad?
From transformers 4.53 on each checkpointing layer checks its own flag, and needs the function that
`gradient_checkpointing_enable()` gives it. The flag of the model reaches no layer: the attribute is True, nothing is
recomputed, and memory does not fall.

## Example
```python
self.vision_tower = SiglipVisionModel(config)
self.vision_tower.gradient_checkpointing = True                      # before

self.vision_tower = SiglipVisionModel(config)
self.vision_tower.gradient_checkpointing_enable()                    # by hand
```

## Fix safety
Reported only: the method takes the options of torch's checkpoint function, and the choice of them is yours.
Information only where the package admits a transformers older than 4.52, whose models had flags that worked.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext
from ckpt_surgery.codemods.providers.flags_by_hand import FLAGS_BY_HAND

RULE = Declaration(code="CKPT014", repair=RepairKind.NONE)


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding for each flag of a model of transformers that is set by hand."""
    for path in context.tree.checked:
        flags = context.tree.names.files[path][FLAGS_BY_HAND]
        applicability = (
            Applicability.INFO if flags and context.tree.layers.old_requirement(path) else Applicability.UNSAFE
        )
        for flag in flags:
            message = (
                f"{flag.target} is a model of transformers, whose layers from 4.53 on each need their own flag: "
                f"this one switches none of them on; call {flag.target}.gradient_checkpointing_enable()"
            )
            yield context.finding(RULE, path, flag.span, flag.scope, message, applicability)
