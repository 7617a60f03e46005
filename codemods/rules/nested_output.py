"""A block returns gradient tensors inside a nested tuple.

## What it does
Reports blocks whose forward returns a tuple with hidden states inside another tuple or list.

## Why is this bad?
With `use_reentrant=True` only the tensors of the outer tuple get a gradient. LiLT in transformers 4.57.6 loses 62
gradients this way.

## Example
```python
return ((layer_output, layout_output), attention)   # before
return (layer_output, layout_output, attention)     # by hand
```

## Fix safety
Reported only: callers unpack what the block returns. Train with `use_reentrant=False`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext

RULE = Declaration(code="CKPT010", repair=RepairKind.NONE, applicability=Applicability.UNSAFE)


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding for every nested output of a block."""
    for ref in context.tree.names.checked_classes():
        spans = ref.cls.forward.nested_returns if ref.cls.forward else ()
        # if another forward is assigned, CKPT003 says so at its calls
        if spans and context.tree.blocks.checkpoints(ref) and not context.tree.bases.is_replaced(ref):
            message = f"{ref.name} returns gradient tensors inside a nested tuple: lost with use_reentrant=True"
            yield from (context.finding(RULE, ref.path, span, ref.name, message) for span in spans)
