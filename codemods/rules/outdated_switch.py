"""A model's own `_set_gradient_checkpointing(self, module, value=False)` switches no checkpointing layer on.

## What it does
Finds methods `_set_gradient_checkpointing` that take `value`, the form of transformers before 4.35, in models of
transformers, and takes them out. Other libraries have methods of that name and form, too: those are left alone.

## Why is this bad?
Where a model has such a method, `gradient_checkpointing_enable()` calls it for each module and does nothing else. A
`GradientCheckpointingLayer` then never gets the function that checkpoints it: nothing is recomputed, and
`is_gradient_checkpointing` is True all the same. Measured on OmDetTurbo of transformers 5.23.0: its decoder layers are
never recomputed. The options in `gradient_checkpointing_kwargs` are ignored, too.

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
Safe where the method only sets `gradient_checkpointing`: transformers' own method, which is inherited then, sets the
same flag on every module that has it. The repairs of CKPT001 and CKPT002 take such methods out as well. A method that
does more is left to a person. Where a model has no layers yet, its inline branches work, and the finding is
information.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.context import RuleContext
from ckpt_surgery.codemods.declaration import Declaration, RepairKind
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.codemods.providers.old_switches import OLD_SWITCH, OldSwitch
from ckpt_surgery.codemods.repair import SourceRepair
from ckpt_surgery.codemods.repairs.old_switches import switches_a_model, without_switch
from ckpt_surgery.codemods.tree.classes import Answer, ClassRef

RULE = Declaration(
    code="CKPT011",
    repair=RepairKind.SAFE,
    commit="{} is switched on by transformers' own method",
)


def find(context: RuleContext) -> Iterator[Finding]:
    """A finding for each class with such a method."""
    for ref in context.tree.names.checked_classes():
        switch = ref.cls[OLD_SWITCH]
        if switch is not None and switches_a_model(context.tree, ref):
            yield _finding(context, ref, switch)


def _finding(context: RuleContext, ref: ClassRef, switch: OldSwitch) -> Finding:
    inside = context.tree.blocks.inside((ref, *context.tree.bases.heirs(ref)))
    layers = [part for part in inside if context.tree.bases.is_layer(part) is Answer.YES]
    layer = min(layers, key=lambda part: (part.path, part.cls.span.line), default=None)
    message = f"{ref.name}._set_gradient_checkpointing has the form of transformers before 4.35"
    if layer is None:
        message += ": gradient_checkpointing_kwargs are ignored, and layers would never be checkpointed"
        return _at(context, ref, switch, message, Applicability.INFO)
    message += f": {layer.name} and other layers are never checkpointed"
    if not switch.only_flags:
        message += "; not repaired: it does more than set gradient_checkpointing"
        return _at(context, ref, switch, message, Applicability.UNSAFE)
    return _at(context, ref, switch, message, Applicability.SAFE, (without_switch(context.tree, ref),))


def _at(
    context: RuleContext,
    ref: ClassRef,
    switch: OldSwitch,
    message: str,
    applicability: Applicability,
    repairs: tuple[SourceRepair, ...] = (),
) -> Finding:
    return context.finding(RULE, ref.path, switch.span, ref.name, message, applicability, repairs, switch.first_line)
