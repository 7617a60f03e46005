"""A block in a stack of a model that claims gradient checkpointing is not a GradientCheckpointingLayer.

## What it does
Looks into the stacks (ModuleList, Sequential, ModuleDict, lists built by `append`, `setattr`) of models whose
`supports_gradient_checkpointing` is True. Reports elements that are blocks (they hold attention, recurrence or a state
space model) and whose class is a plain `nn.Module`. Other elements (projections, heads, experts) are information only.
Stages whose own layers are checkpointed are not reported: those of Donut, FocalNet, Hiera, MaskFormer-Swin and
Swin2SR, which TRF034 of transformers' own linter reports by name.

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
A base class from another package stays, with the layer in front of it. Unsafe where

- a call in the tree passes past state by position, and only CKPT005 (`--unsafe`) can make it a keyword;
- the model reads more outputs of the block where its `use_cache` is True, and does not set that to False under
  checkpointing: a layer does so for the block alone, and training stops with `IndexError` (the finding says what to
  add);
- no call of the block was found: tensors passed to it by keyword would lose their gradient;
- a function or another class checkpoints, and reads the stack's attribute of another object (`model.layers`), and
  something else calls the block: where nothing else does, the finding is information;
- a checkpoint call is commented out in a method that calls the block: somebody may have switched it off on purpose;
- the block, or something in it, does more than return a result: it stores a tensor with its gradient (an auxiliary
  loss, router logits) in an attribute, a global, or a list or dict that it is given; it sets an attribute that it
  reads in its next call; it reads past state, which a layer clears, without asking whether there is any, or reads what
  another block put there;
- something would bypass the layer: a `__call__` or `__init_subclass__` of the block's own, an assigned
  `self.forward`, a flag that the block sets itself, a class that names the layer in front of the block.

Not repaired where the layer class cannot be imported: the package asks for a transformers older than 4.52, or only
models that import transformers under a condition hold the block.

Blocks that are checkpointed in another form are left alone: by a method or function of the tree (`self._run(block,
x)`, a decorator of their forward), by an unknown function that is named after checkpointing or called where the model
checkpoints, by a method of their own (`checkpoint(self._forward, x)`), in segments (`checkpoint_sequential`), by an
autograd function (`Offloaded.apply(block, x)`), together with other modules in one checkpoint, by wrappers of torch or
fairscale, or where nothing shows what a model checkpoints. Nothing is decided if another forward is assigned to the
block or the model (`FooLayer.forward = new_forward`, or `forward = Bar.forward` inside the class), or if the block is
handed to an unknown function of any other name.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext
from ckpt_surgery.codemods.repair import SourceRepair
from ckpt_surgery.codemods.repairs.conversion import Doubt, aliased, commented_out, convert, failing_read
from ckpt_surgery.codemods.tree.blocks import StackElement
from ckpt_surgery.codemods.tree.classes import Answer, ClassRef
from ckpt_surgery.codemods.tree.switches import Missing
from ckpt_surgery.codemods.wording import Because, replaced_text
from ckpt_surgery.model_patches.vocabulary import NO_BLOCKS

RULE = Declaration(code="CKPT001", repair=RepairKind.SAFE, commit="{} becomes a GradientCheckpointingLayer")


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield findings for every stack element that is not a layer: blocks first, the rest as information."""
    tree = context.tree
    holders = tree.containers.supported
    if context.include_unsupported:
        holders |= frozenset(tree.names.checked_classes())
    seen: set[tuple[ClassRef, bool]] = set()

    def place(element: StackElement) -> tuple[str, int, bool, bool, str]:
        holder, ref = element.holder, element.element
        return ref.path, ref.cls.span.line, not element.is_block, holder.path != ref.path, holder.name

    for element in sorted(tree.blocks.elements(holders), key=place):
        ref = element.element
        key = (ref, element.is_block)
        if key in seen or ref.path not in tree.checked or tree.blocks.checkpointed_by_hand(ref):
            continue
        seen.add(key)
        if element.is_block:
            yield _block(context, element)
        elif (ref, True) not in seen:
            message = f"{ref.name} is in {element.stack} but is not a block: nothing to checkpoint"
            if element.holder.cls.inlines and not NO_BLOCKS.search(ref.name):
                message = (
                    f"{ref.name} is in {element.stack}, and nothing here checkpoints it: {element.holder.name} "
                    "checkpoints other modules by hand, and `wrap_blocks` takes these if they hold several modules"
                )
            yield context.class_finding(RULE, ref, message, Applicability.INFO, first_line=ref.cls.first_line)
    for holder in sorted(holders, key=lambda ref: (ref.path, ref.cls.span.line)):
        for name, external in tree.blocks.foreign(holder) if holder.path in tree.checked else ():
            message = (
                f"{holder.name}.{name} holds {external.name} of {external.module}, whose definition was not found"
            )
            yield context.class_finding(RULE, holder, message, Applicability.UNKNOWN)


def _block(context: RuleContext, element: StackElement) -> Finding:
    tree, ref = context.tree, element.element

    def finding(message: str, applicability: Applicability, repairs: tuple[SourceRepair, ...] = ()) -> Finding:
        return context.class_finding(RULE, ref, message, applicability, repairs, first_line=ref.cls.first_line)

    replaced = next(filter(tree.bases.is_replaced, (ref, element.holder)), None)
    if replaced:
        message = f"{ref.name} is a block of {element.stack}, and {replaced_text(replaced.name)}"
        return finding(message, Applicability.UNKNOWN)
    message = f"{ref.name}, a block of {element.stack}, is not a GradientCheckpointingLayer"
    helper = tree.blocks.perhaps_by_helper.get(ref)
    if helper:
        owner, function = helper
        message += f"; {owner.name} hands it to {function}, which is not at hand: "
        message += "whether that checkpoints it is not known"
        return finding(message, Applicability.UNKNOWN)
    built = (value for _, value in tree.bases.attribute(element.holder, element.attribute))
    twins = tree.lineages.same(ref)
    relatives = (each for twin in twins for each in (twin, *tree.bases.heirs(twin)))
    called = any(each.is_sequential() for each in built) or any(each in tree.blocks.callers for each in relatives)
    elsewhere = tree.blocks.reached_by(element)
    if elsewhere and not called:
        return finding(f"{message}, and {elsewhere} checkpoints what reads its stack", Applicability.INFO)
    if not elsewhere:
        message += ": it is never checkpointed" if called else ", and nothing here checkpoints it"
    if tree.bases.is_layer(ref) is Answer.UNKNOWN:
        message = f"{ref.name}, a block of {element.stack}, has a base class outside the files at hand"
    conversion = convert(tree, ref, context.argument_repairs)
    if isinstance(conversion, Because) and isinstance(conversion.reason, Missing):
        on_purpose = [reason.text for reason in commented_out(tree, ref)]
        said = dict.fromkeys([message, *on_purpose, f"not repaired: {conversion.text}"])
        return finding("; ".join(said), Applicability.INFO if on_purpose else Applicability.UNSAFE)
    if isinstance(conversion, Because):
        return finding(f"{message} ({conversion.text})", Applicability.UNKNOWN)
    doubts = conversion.reasons or (() if called else (Doubt.NO_CALL.about(ref.name),))
    twice = Doubt.ELSEWHERE.about(elsewhere, element.attribute, ref.name) if elsewhere else None
    reasons = [reason.text for reason in (twice, *doubts, failing_read(tree, ref)) if reason]
    applicability = Applicability.UNSAFE if reasons else Applicability.SAFE
    repairs = (*conversion.repairs, *aliased(tree, element.holder, ref))
    return finding("; ".join([message, *reasons]), applicability, repairs)
