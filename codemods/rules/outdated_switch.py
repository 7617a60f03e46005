"""A model's own `_set_gradient_checkpointing(self, module, value=False)` switches no checkpointing layer on.

## What it does
Removes the method `_set_gradient_checkpointing` from models of transformers if it takes `value`, as before
transformers 4.35. Other libraries have methods of that name and form, too: those are left alone.

## Why is this bad?
If a model has such a method, `gradient_checkpointing_enable()` calls it for each module and does nothing else. A
`GradientCheckpointingLayer` then never gets the function that checkpoints it: nothing is recomputed, the options in
`gradient_checkpointing_kwargs` are ignored, and `is_gradient_checkpointing` is True all the same. Measured on
OmDetTurbo of transformers 5.23.0: its decoder layers are never recomputed.

## Example
```python
class FooPreTrainedModel(PreTrainedModel):                                # before
    supports_gradient_checkpointing = True

    def _set_gradient_checkpointing(self, module, value=False):
        if isinstance(module, FooModel):
            module.gradient_checkpointing = value

class FooPreTrainedModel(PreTrainedModel):                                # after
    supports_gradient_checkpointing = True
```

## Fix safety
Safe where the method only sets `gradient_checkpointing`: the inherited method of transformers sets the same flag on
every module that has it. A method that does more is left to a person. The repairs of CKPT001 and CKPT002 remove
such methods as well. If a model has no layers yet, its inline branches work, and the finding is information.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext
from ckpt_surgery.codemods.providers.switches import OLD_SWITCH
from ckpt_surgery.codemods.repairs.conversion import without_switch
from ckpt_surgery.codemods.tree.classes import Answer
from ckpt_surgery.model_patches.release_names import LAYER_CLASS

RULE = Declaration(code="CKPT011", repair=RepairKind.SAFE, commit="{} is switched on by transformers' own method")


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding for each class with such a method."""
    for ref in context.tree.names.checked_classes():
        switch = ref.cls[OLD_SWITCH]
        if switch is None or not context.tree.bases.serves_pretrained(ref):
            continue
        inside = context.tree.containers.with_parts(ref, *context.tree.bases.heirs(ref))
        layers = [part for part in inside if context.tree.bases.is_layer(part) is Answer.YES]
        if layers:
            first = min(layers, key=lambda part: (part.path, part.cls.span.line))
            said = f"{first.name} and other layers are never checkpointed"
            applicability = Applicability.SAFE if switch.only_flags else Applicability.UNSAFE
        else:
            said = f"gradient_checkpointing_kwargs are ignored, and a {LAYER_CLASS} would not be switched on"
            applicability = Applicability.INFO
        message = f"{ref.name}._set_gradient_checkpointing has the form of transformers before 4.35: {said}"
        if applicability is Applicability.UNSAFE:
            message += "; not repaired: it does more than set gradient_checkpointing"
        repairs = (without_switch(context.tree, ref),) if applicability is Applicability.SAFE else ()
        yield context.finding(
            RULE, ref.path, switch.span, ref.name, message, applicability, repairs, switch.first_line
        )
