"""Past state is passed under a keyword that the release's GradientCheckpointingLayer does not clear.

## What it does
Reads the keywords that the tree's own `GradientCheckpointingLayer` clears and reports calls of blocks that
pass past state under another one: `state`, `cache_params`, `shared_kv_states`, and `past_key_value` on
late 5.x, which no longer clears it.

## Why is this bad?
Past state that is not cleared goes into the checkpoint, and the recompute writes it a second time. A cache that is
passed explicitly during training grows from 16 to 32 positions in the backward pass.

## Example
```python
hidden_states = layer(hidden_states, cache_params=cache_params)   # cleared: use_cache, past_key_values, layer_past
```

## Fix safety
Reported only: the parameter would have to be renamed in the block and in every caller.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.context import RuleContext
from ckpt_surgery.codemods.declaration import Declaration, RepairKind
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.codemods.tree.call_sites import meaning_of

RULE = Declaration(
    code="CKPT008",
    repair=RepairKind.NONE,
    applicability=Applicability.UNSAFE,
)


def find(context: RuleContext) -> Iterator[Finding]:
    """A finding for every past state keyword that goes through the checkpoint."""
    for site in context.tree.calls.all():
        block, forward = site.blocks[0]
        if context.tree.bases.flag(block, "_can_checkpoint_with_cache") == "True":
            continue
        past = meaning_of(block).past_names(forward.params)
        cleared = context.tree.cleared(site.owner.path)
        for argument in site.call.args:
            if argument.name in past and argument.name not in cleared and argument.is_value:
                message = (
                    f"{block.name} gets past state as `{argument.name}`, which this release's "
                    f"GradientCheckpointingLayer does not clear (it clears {', '.join(cleared) or 'nothing'})"
                )
                yield context.call_finding(RULE, site, message, span=argument.span)
