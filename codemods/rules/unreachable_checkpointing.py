"""A model says that it supports gradient checkpointing, and nothing in it can checkpoint.

## What it does
Reports model classes with `supports_gradient_checkpointing = True` that hold no `GradientCheckpointingLayer`, no block
that CKPT001 would repair, and no inline branch. Models without attention or recurrence (vocoders, quantizers, heads)
are reported as information only.

## Why is this bad?
`gradient_checkpointing_enable()` succeeds, `is_gradient_checkpointing` is True, and memory does not fall.

## Example
```python
class FooModel(FooPreTrainedModel):            # supports_gradient_checkpointing = True
    def __init__(self, config):
        self.convolution = nn.Conv2d(3, 64, 7)  # and no block anywhere
```

## Fix safety
Reported only: either the flag is wrong, or the blocks are not recognised as blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.context import RuleContext
from ckpt_surgery.codemods.declaration import Declaration, RepairKind
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.codemods.tree.classes import Answer, ClassRef, Target, is_plain_external
from ckpt_surgery.model_patches import family_facts
from ckpt_surgery.model_patches.release_names import CLAIM

RULE = Declaration(
    code="CKPT009",
    repair=RepairKind.NONE,
)
_BUILT_ELSEWHERE = ("Auto", "load_backbone", "Backbone", "timm")


def find(context: RuleContext) -> Iterator[Finding]:
    """A finding for the innermost model classes without anything to checkpoint."""
    models = [
        ref
        for ref in context.tree.names.checked_classes()
        if context.tree.bases.flag(ref, CLAIM) == "True"
        and any(method.name == "__init__" for method in ref.cls.methods)
        and ref.cls.attributes
        and not _is_block(context, ref)
    ]
    bare = {ref: answer for ref in models if (answer := _reaches(context, ref)) is not Answer.YES}
    for ref, answer in bare.items():
        if any(part in bare for part in context.tree.containers.parts(ref)):
            continue
        if answer is Answer.NO:
            message = f"{ref.name} claims to support gradient checkpointing, but holds nothing that checkpoints"
            worth = context.tree.blocks.mixes(ref)
            applicability = Applicability.UNSAFE if worth else Applicability.INFO
            yield context.class_finding(RULE, ref, message, applicability)
        else:
            message = f"the parts of {ref.name} are chosen at run time: whether it checkpoints cannot be determined"
            yield context.class_finding(RULE, ref, message, Applicability.UNKNOWN)


def _is_block(context: RuleContext, ref: ClassRef) -> bool:
    """Whether what holds a class checkpoints it, or should: some blocks derive from the model's own base class."""
    blocks = context.tree.blocks
    return blocks.checkpoints(ref) or ref in blocks.in_stacks or blocks.checkpointed_by_hand(ref)


def _is_unknown(context: RuleContext, part: Target) -> bool:
    """Whether a part comes from elsewhere, or inherits from there."""
    if isinstance(part, ClassRef):
        return context.tree.bases.is_layer(part) is Answer.UNKNOWN
    return bool(part.module) and not is_plain_external(part)


def _reaches(context: RuleContext, ref: ClassRef) -> Answer:
    """Whether anything that checkpoints is inside."""
    seen: set[ClassRef] = {ref}
    waiting = [ref]
    doubt = False
    while waiting:
        holder = waiting.pop()
        if any(ancestor.cls.inlines for ancestor in context.tree.bases.lineage(holder)):
            return Answer.YES
        if context.tree.blocks.wraps(holder):
            return Answer.YES
        doubt = doubt or holder in context.tree.blocks.perhaps_by_helper
        for part in context.tree.containers.all_parts(holder):
            if any(word in part.name for word in _BUILT_ELSEWHERE) or _is_unknown(context, part):
                doubt = True
            if isinstance(part, ClassRef) and part not in seen:
                seen.add(part)
                blocks = context.tree.blocks
                if blocks.checkpoints(part) or part in blocks.in_stacks | blocks.checkpointed_by_helper:
                    return Answer.YES
                if part.name in family_facts(part.path).not_blocks:
                    return Answer.YES  # it stays plain on purpose
                waiting.append(part)
    return Answer.UNKNOWN if doubt else Answer.NO
