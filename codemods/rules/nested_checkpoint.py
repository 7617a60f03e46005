"""A checkpointing layer holds another checkpointing layer.

## What it does
Reports a `GradientCheckpointingLayer` that holds other `GradientCheckpointingLayer`s, at any depth.

## Why is this bad?
The inner layer is computed three times a step: in the forward pass, in the recompute of the outer layer, and in its
own recompute. SwinStage holds SwinLayer, ZambaHybridLayer holds ZambaMambaDecoderLayer.

## Example
```python
class FooStage(GradientCheckpointingLayer):
    def __init__(self, config):
        self.blocks = nn.ModuleList([FooLayer(config) for _ in range(2)])   # FooLayer is a layer, too
```

## Fix safety
Reported only: which of the two should checkpoint is a choice between memory and time.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext
from ckpt_surgery.codemods.tree.caching import reachable
from ckpt_surgery.codemods.tree.classes import Answer, ClassRef

RULE = Declaration(code="CKPT006", repair=RepairKind.NONE, applicability=Applicability.UNSAFE)


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding for every layer with layers inside."""
    tree = context.tree

    def is_layer(ref: ClassRef) -> bool:
        return tree.bases.is_layer(ref) is Answer.YES

    for ref in filter(is_layer, tree.names.checked_classes()):
        inside = reachable(
            tree.containers.parts(ref), lambda part: () if is_layer(part) else tree.containers.parts(part)
        )
        inner = sorted({part.name for part in inside if is_layer(part) and part is not ref})
        if inner:
            message = f"{ref.name} holds {', '.join(inner)}: computed three times a step"
            yield context.class_finding(RULE, ref, message)
