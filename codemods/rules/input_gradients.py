"""Checkpointed blocks get no input that needs a gradient, or a model writes in place into embeddings that need one.

## What it does
Finds scripts that checkpoint reentrantly behind frozen embeddings: `gradient_checkpointing_enable()` after
`get_peft_model`, before `add_adapter` of transformers, or with embeddings whose `requires_grad` is set to False; and a
Trainer with `gradient_checkpointing=True` on a model of `get_peft_model`. Reentrant means `use_reentrant=True`, or the
default up to transformers 4.57: that is information, unless the package admits no later release. Not reported: files
that call `enable_input_require_grads()` or `prepare_model_for_kbit_training`, that hook the embeddings or train them,
and Trainers of other libraries, such as trl's, which take care of it; packages that rule out transformers before 5.0,
since later on `gradient_checkpointing_enable()` makes the embeddings of text models need gradients.

It also finds models of transformers that write in place into what their input embeddings returned:
`inputs_embeds[mask] = image_features`, `inputs_embeds += features`, `inputs_embeds.masked_scatter_(...)`.

## Why is this bad?
A reentrant checkpoint gives its parameters a gradient only if an input needs one. Behind frozen embeddings the input
of the first block needs none: torch raises `element 0 of tensors does not require grad`, or, where a head trains
behind the blocks, warns once and trains nothing else. Measured on transformers 4.57.6 with a Llama of two blocks and
frozen embeddings: 2 of 20 parameters get a gradient.

`enable_input_require_grads()` solves that: it calls `requires_grad_()` on what the embeddings return, which is a leaf
if they are frozen. PEFT calls it where checkpointing is on, transformers 5 wherever it is switched on. Torch then
refuses in-place writes: `a leaf Variable that requires grad is being used in an in-place operation`. Udop, Kosmos-2
and BLT of transformers 5.23.0 cannot be trained this way.

## Example
```python
model = get_peft_model(model, config)
model.gradient_checkpointing_enable()                                                                     # before
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})               # after

inputs_embeds[image_mask] = image_features                                                                # before
inputs_embeds = inputs_embeds.masked_scatter(image_mask.unsqueeze(-1), image_features)                    # after
```

## Fix safety
Reported only: which solution fits, and where to copy, is your choice.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext, Subject
from ckpt_surgery.codemods.providers.input_gradients import CUT_OFF, LEAF_WRITES
from ckpt_surgery.codemods.tree.requirements import only_before, only_since
from ckpt_surgery.model_patches.release_names import NON_REENTRANT_SINCE

RULE = Declaration(code="CKPT108", subject=Subject.SCRIPT, repair=RepairKind.NONE)


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding for each switch whose blocks get no gradient, and for each write into embeddings."""
    for path in context.tree.checked:
        facts = context.tree.names.files[path]
        for write in facts[LEAF_WRITES]:
            message = (
                f"`{write.name}` of {write.made}(...) on line {write.line} is written in place: if the embeddings are "
                "frozen and made to need gradient, as PEFT and transformers 5 do for checkpointing, it is a leaf, and "
                "torch raises a RuntimeError; write into a copy"
            )
            yield context.script_finding(RULE, path, write.spot, message, Applicability.UNSAFE)
        required = context.tree.layers.required(path) if facts[CUT_OFF] else ()
        for switch in facts[CUT_OFF] if not only_since(NON_REENTRANT_SINCE, required) else ():
            sure = switch.reentrant or only_before(NON_REENTRANT_SINCE, required)
            how = (
                "use_reentrant=True, up to transformers 4.57,"
                if switch.reentrant
                else "the reentrant mode, the default up to transformers 4.57,"
            )
            message = (
                f"{switch.text} behind {switch.cause} (line {switch.line}): with {how} no input of the first block "
                f"needs a gradient, and no block is trained; call {switch.model}.enable_input_require_grads(), or "
                "pass use_reentrant=False where nothing needs the other mode"
            )
            applicability = Applicability.UNSAFE if sure else Applicability.INFO
            yield context.script_finding(RULE, path, switch.spot, message, applicability)
