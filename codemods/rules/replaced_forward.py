"""The forward of a checkpointing layer is replaced by another.

## What it does
Finds code that assigns to the `forward` of a `GradientCheckpointingLayer`: on the class
(`modeling_llama.LlamaDecoderLayer.forward = fused_forward`), or on the layers of a model
(`for layer in model.model.layers: layer.forward = ...`). Not reported: code that reads the old forward as well, and so
may call it, patches of what a layer holds, such as its attention or its MLP, and packages whose requirements rule out
transformers 5.23 and later.

## Why is this bad?
Since transformers 5.23, a layer checkpoints in its `forward`, which is wrapped when the class is created. A forward
that is assigned later is not wrapped: nothing is recomputed, `is_gradient_checkpointing` stays True, and memory does
not fall. Up to 5.22 the layer's `__call__` checkpoints, and such a patch does no harm.

## Example
```python
modeling_llama.LlamaDecoderLayer.forward = fused_forward             # drops checkpointing

modeling_llama.LlamaMLP.forward = fused_mlp                          # keeps it
```

## Fix safety
Reported only. Patch what the layer holds, call `wrap_blocks(model)` after the patch, which checkpoints whatever
`forward` the block has, or make a subclass of the layer with the forward, which transformers wraps.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext
from ckpt_surgery.codemods.providers.forwards import FORWARD_PATCHES
from ckpt_surgery.codemods.tree.classes import Answer, ClassRef, External
from ckpt_surgery.codemods.tree.requirements import only_before

RULE = Declaration(code="CKPT013", repair=RepairKind.NONE, applicability=Applicability.UNSAFE)

_FIRST = "5.23"
"""In earlier releases of transformers, the layer's `__call__` checkpoints, whatever its `forward` is."""


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding for each forward that replaces a layer's."""
    for path in context.tree.checked:
        for patch in context.tree.names.files[path][FORWARD_PATCHES]:
            targets = context.tree.names.named(path, patch.target)
            classes = [target for target in targets if isinstance(target, ClassRef)]
            of_tree = any(context.tree.bases.is_layer(ref) is Answer.YES for ref in classes)
            of_transformers = not classes and External(patch.target, patch.module).is_layer_of_transformers
            is_older = only_before(_FIRST, context.tree.layers.required(path))
            if (patch.stack or of_tree or of_transformers) and not is_older:
                message = (
                    f"{patch.target}.forward is replaced: from transformers 5.23 on the layer's own checkpoints, "
                    "and this one does not; call wrap_blocks(model) after it, or patch what the layer holds"
                )
                yield context.finding(RULE, path, patch.span, patch.scope, message)
