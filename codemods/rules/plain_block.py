"""A block in a stack of a model that claims gradient checkpointing is no GradientCheckpointingLayer.

## What it does
Looks into the stacks (ModuleList, Sequential, ModuleDict, lists built by `append`, `setattr`) of models whose
`supports_gradient_checkpointing` is True. Reports elements that are blocks (they hold attention, recurrence or a state
space model) but whose class is a plain `nn.Module`. Other elements (projections, heads, experts, norms, convolutions)
are reported as information only.

## Why is this bad?
`gradient_checkpointing_enable()` switches `GradientCheckpointingLayer`s only. A plain block silently keeps all its
activations. Measured on transformers 4.57.6: GPTBigCode and SwiftFormer never recompute anything.

## Example
```python
class FooLayer(nn.Module): ...                    # before
class FooLayer(GradientCheckpointingLayer): ...   # after
```

## Fix safety
Safe: the layer class adds no parameters, changes no `state_dict` key and does nothing until checkpointing is enabled.
A base class from another package stays, with the layer in front of it. Unsafe if a call in the tree passes past state
by position and only an unsafe repair (CKPT005) can make it a keyword: as a layer alone, the block would be worse off
than without checkpointing. `--unsafe` repairs both. Unsafe, too, if the model reads more outputs of the block where
its `use_cache` is True, and does not set that to False under checkpointing itself: the layer does so for the block
alone, which then returns fewer outputs, and training stops with `IndexError`. The finding says what to add. And
unsafe if no call of the block was found: what it is given by keyword would lose its gradient. Or if a checkpoint call
is commented out in a method that calls the block: somebody may have switched it off on purpose.

Unsafe where the block, or something in it, does more than return a result: it keeps a tensor with its gradient in an
attribute, a list or dict that it is handed, or a global (an auxiliary loss, router logits); it sets an attribute that
it reads in its next run; it reads past state, which a layer clears, without asking whether there is any, or reads what
another block put there.

Unsafe where something would lead round the layer: a `__call__` or `__init_subclass__` of the block's own, an assigned
`self.forward`, a flag that the block sets itself, a class that names the layer in front of the block.

Not repaired where the layer class cannot be imported: the package asks for a transformers older than 4.52, or only
models that import transformers under a condition hold the block.

Blocks that are checkpointed in another form are left alone: by a method or function of the tree (`self._run(block,
x)`, a decorator of their forward), by one that is not at hand but named after checkpointing or called where the model
checkpoints, by a method of their own (`checkpoint(self._forward, x)`), in segments (`checkpoint_sequential`), by a
function of autograd (`Offloaded.apply(block, x)`), as parts of what is checkpointed as one, by torch's or fairscale's
wrappers; also where a model checkpoints something of which nothing shows what it is. Nothing is decided where another
forward is assigned to the block or the model: `FooLayer.forward = new_forward`, or inside the class `forward =
Bar.forward`; nor where the block is handed to a function that is not at hand, under any other name.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.context import RuleContext
from ckpt_surgery.codemods.declaration import Declaration, RepairKind
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.codemods.repairs.conversion import Doubt, DoubtReason, Refusal, convert
from ckpt_surgery.codemods.repairs.derived_class import aliased
from ckpt_surgery.codemods.tree.blocks import StackElement
from ckpt_surgery.codemods.tree.classes import Answer, ClassRef
from ckpt_surgery.codemods.tree.output_reads import failing_read
from ckpt_surgery.codemods.tree.switches import MissingSwitch
from ckpt_surgery.codemods.wording import doubt_text, missing_text, read_text, refusal_text, replaced_text

RULE = Declaration(
    code="CKPT001",
    repair=RepairKind.SAFE,
    commit="{} becomes a GradientCheckpointingLayer",
)


def find(context: RuleContext) -> Iterator[Finding]:
    """Findings for every stack element that is no layer: blocks first of all, the rest as information."""
    parts = context.tree.containers.supported
    if context.include_unsupported:
        parts |= frozenset(context.tree.names.checked_classes())
    seen: set[tuple[ClassRef, bool]] = set()
    for element in sorted(context.tree.blocks.elements(parts), key=_place):
        ref = element.element
        key = (ref, element.is_block)
        if key in seen or ref.path not in context.tree.checked or context.tree.blocks.checkpointed_by_hand(ref):
            continue
        seen.add(key)
        if element.is_block:
            yield _block(context, element)
        elif (ref, True) not in seen:
            message = f"{ref.name} is in {_stack(element)} but is not a block: nothing to checkpoint"
            yield context.class_finding(RULE, ref, message, Applicability.INFO, first_line=ref.cls.first_line)
    for holder in sorted(parts, key=lambda ref: (ref.path, ref.cls.span.line)):
        for name, external in context.tree.blocks.foreign(holder) if holder.path in context.tree.checked else ():
            message = f"{holder.name}.{name} holds {external.name} of {external.module}, which is not among the files"
            yield context.class_finding(RULE, holder, message, Applicability.UNKNOWN)


def _block(context: RuleContext, element: StackElement) -> Finding:
    ref = element.element
    called = _is_called(context, element)
    never = ": it is never checkpointed" if called else ", and nothing here checkpoints it"
    message = f"{ref.name}, a block of {_stack(element)}, is not a GradientCheckpointingLayer{never}"
    applicability = Applicability.SAFE
    replaced = next(filter(context.tree.bases.is_replaced, (ref, element.holder)), None)
    if replaced:
        message = f"{ref.name} is a block of {_stack(element)}, and {replaced_text(replaced)}"
        return context.class_finding(RULE, ref, message, Applicability.UNKNOWN, first_line=ref.cls.first_line)
    helper = context.tree.blocks.perhaps_by_helper.get(ref)
    if helper:
        owner, function = helper
        message = f"{ref.name}, a block of {_stack(element)}, is not a GradientCheckpointingLayer"
        message += (
            f"; {owner.name} hands it to {function}, which is not at hand: whether that checkpoints it is not known"
        )
        return context.class_finding(RULE, ref, message, Applicability.UNKNOWN, first_line=ref.cls.first_line)
    if context.tree.bases.is_layer(ref) is Answer.UNKNOWN:
        message = f"{ref.name}, a block of {_stack(element)}, has a base class outside the files at hand"
        applicability = Applicability.UNKNOWN
    conversion = convert(context.tree, ref, context.argument_repairs)
    if isinstance(conversion, MissingSwitch):
        message += f"; not repaired: {missing_text(conversion)}"
        if applicability is Applicability.SAFE:
            applicability = Applicability.UNSAFE
        return context.class_finding(RULE, ref, message, applicability, first_line=ref.cls.first_line)
    if isinstance(conversion, Refusal):
        message += f" ({refusal_text(conversion)})"
        applicability = Applicability.UNKNOWN
        return context.class_finding(RULE, ref, message, applicability, first_line=ref.cls.first_line)
    doubt = conversion.doubt or (None if called else Doubt(DoubtReason.NO_CALL, (ref.name,)))
    if doubt and applicability is Applicability.SAFE:
        message += f"; {doubt_text(doubt)}"
        applicability = Applicability.UNSAFE
    read = failing_read(context.tree, ref)
    if read and applicability is not Applicability.UNKNOWN:
        message += f"; {read_text(read)}"
        applicability = Applicability.UNSAFE
    repairs = (*conversion.repairs, *aliased(context.tree, element.holder, ref))
    return context.class_finding(RULE, ref, message, applicability, repairs, first_line=ref.cls.first_line)


def _is_called(context: RuleContext, element: StackElement) -> bool:
    """Whether a call of the block was found, by its stack or by a method: what it passes is looked at then."""
    tree = context.tree
    if any(built.is_sequential() for _, built in tree.bases.attribute(element.holder, element.attribute)):
        return True
    twins = tree.lineages.same(element.element)
    return any(ref in tree.blocks.callers for twin in twins for ref in (twin, *tree.bases.heirs(twin)))


def _stack(element: StackElement) -> str:
    return f"{element.holder.name}.{element.attribute}"


def _place(element: StackElement) -> tuple[str, int, bool, bool, str]:
    elsewhere = element.holder.path != element.element.path
    line = element.element.cls.span.line
    return (element.element.path, line, not element.is_block, elsewhere, element.holder.name)
