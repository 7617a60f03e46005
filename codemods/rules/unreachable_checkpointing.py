"""A model says that it supports gradient checkpointing, and nothing in it can checkpoint.

## What it does
Reports model classes with `supports_gradient_checkpointing = True` that are made of no
`GradientCheckpointingLayer`, no block that CKPT001 would repair, and no inline branch. Models without
attention or recurrence (vocoders, quantizers, heads) are reported as information only.

## Why is this bad?
`gradient_checkpointing_enable()` succeeds, `is_gradient_checkpointing` is True, and memory does not fall.

## Example
```python
class FooModel(FooPreTrainedModel):            # supports_gradient_checkpointing = True
    def __init__(self, config):
        self.convolution = nn.Conv2d(3, 64, 7)  # and no block anywhere
```

## Fix safety
Reported only: either the flag is wrong or the blocks are not known as such.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.context import Context
from ckpt_surgery.codemods.declaration import Declaration, RepairKind
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.codemods.tree.classes import Answer, Ref, Target, is_plain_external
from ckpt_surgery.model_patches import family_facts

RULE = Declaration(
    code="CKPT009",
    repair=RepairKind.NONE,
)
_BUILT_ELSEWHERE = ("Auto", "load_backbone", "Backbone", "timm")


def find(context: Context) -> Iterator[Finding]:
    """A finding for the innermost model classes without anything to checkpoint."""
    models = [
        ref
        for ref in context.tree.checked_refs()
        if context.tree.flag(ref, "supports_gradient_checkpointing") == "True"
        and any(name == "__init__" for name in ref.cls.methods)
        and ref.cls.attributes
    ]
    bare = {ref: answer for ref in models if (answer := _reaches(context, ref)) is not Answer.YES}
    for ref, answer in bare.items():
        if any(part in bare for part in context.tree.parts(ref)):
            continue
        if answer is Answer.NO:
            message = f"{ref.name} supports gradient checkpointing by its flag, and holds nothing that checkpoints"
            worth = context.blocks.mixes(ref)
            applicability = Applicability.UNSAFE if worth else Applicability.INFO
            yield context.finding(RULE, ref.path, ref.cls.header, ref.name, message, applicability)
        else:
            message = f"what {ref.name} is made of is decided at run time: whether it checkpoints cannot be told"
            yield context.finding(RULE, ref.path, ref.cls.header, ref.name, message, Applicability.UNKNOWN)


def _is_unknown(context: Context, part: Target) -> bool:
    """Whether a part comes from elsewhere, or inherits from there."""
    if isinstance(part, Ref):
        return context.tree.is_layer(part) is Answer.UNKNOWN
    return bool(part.module) and not is_plain_external(part)


def _reaches(context: Context, ref: Ref) -> Answer:
    """Whether anything that checkpoints is inside."""
    seen: set[Ref] = {ref}
    waiting = [ref]
    doubt = False
    while waiting:
        one = waiting.pop()
        if any(ancestor.cls.inlines for ancestor in context.tree.lineage(one)):
            return Answer.YES
        for part in context.tree.all_parts(one):
            if any(word in part.name for word in _BUILT_ELSEWHERE) or _is_unknown(context, part):
                doubt = True
            elif isinstance(part, Ref) and part not in seen:
                seen.add(part)
                if context.tree.is_layer(part) is Answer.YES or part in context.blocks.plain:
                    return Answer.YES
                if part.name in family_facts(part.path).not_blocks:
                    return Answer.YES  # it stays plain on purpose
                waiting.append(part)
    return Answer.UNKNOWN if doubt else Answer.NO
