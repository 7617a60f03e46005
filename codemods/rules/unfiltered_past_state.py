"""Past state is passed under a keyword that the release's GradientCheckpointingLayer does not clear.

## What it does
Finds out which keywords `GradientCheckpointingLayer` clears: that of the tree, else that of the releases of
transformers that the package asks for, else that of the installed release, else that of recent ones. Reports calls of
blocks that pass past state under another keyword: `state`, `cache_params`, `shared_kv_states`, and `past_key_value`,
which is no longer cleared from 5.17 on. If only some of those releases clear it, the finding says which.

Information only where the calling method makes no cache while it trains under checkpointing (it sets `use_cache` to
False first, or tests `not self.training`): the fault occurs only with a cache that a caller passes or asks for.

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

from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext
from ckpt_surgery.model_patches.release_names import KEEPS_CACHE

RULE = Declaration(code="CKPT008", repair=RepairKind.NONE)


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding for every past state that goes through the checkpoint under a keyword."""
    for site in context.tree.calls.all():
        block, forward = site.blocks[0]
        keeps = context.tree.bases.flag(block, KEEPS_CACHE) == "True"
        past = () if keeps else context.tree.calls.meaning(block).past_names(forward.params)
        for position, argument in enumerate(site.call.args):
            if argument.name is None or argument.name not in past or not argument.is_value:
                continue
            cleared = context.tree.layers.cleared(block.path)
            first, end = cleared.get(argument.name, ("", ""))
            if first or end:
                where = f" before transformers {first}" if first else f" from transformers {end} on"
            elif argument.name in cleared:
                continue
            else:
                where = f" (it clears {', '.join(cleared) or 'nothing'})"
            message = (
                f"{block.name} gets past state as `{argument.name}`, which "
                f"GradientCheckpointingLayer does not clear{where}"
            )
            applicability = Applicability.UNSAFE
            if position in site.call.idle_caches:
                message += f"; {site.owner.name}.{site.call.method} makes none in training unless a caller asks for it"
                applicability = Applicability.INFO
            yield context.call_finding(RULE, site, message, applicability, span=argument.span)
