"""A training script asks for checkpointing, and nothing is checkpointed.

## What it does
Finds scripts with a training loop of their own that call `gradient_checkpointing_enable()` on a model of transformers
that trains in evaluation mode: `from_pretrained` returns it in that mode, or `eval()` is called, and nothing in the
file calls `train()`; or the loop calls `eval()` to evaluate and goes on without `train()`. The model may be an
attribute of a class of the file. It finds calls of that method on a DistributedDataParallel wrapper, and on what
`accelerator.prepare` returned, which is one in several processes; and an option `gradient_checkpointing` that nothing
reads, of argparse or of a dataclass that `HfArgumentParser` fills.

Not reported: a Trainer, which calls `train()` itself, and fields of its arguments, which it reads; models of other
libraries, such as diffusers, which checkpoint in evaluation mode; models and parsed options that are passed to code in
other files, except to log them; what `torch.compile` returned, which passes the call on, and FSDP.

## Why is this bad?
Models of transformers checkpoint in training mode alone. In evaluation mode `is_gradient_checkpointing` is True, the
losses look normal, no block is recomputed, and memory does not fall; dropout is off as well. A wrapper of
DistributedDataParallel has no such method: the call fails, or does nothing behind `hasattr`.

## Example
```python
model = AutoModelForCausalLM.from_pretrained(name)
model.gradient_checkpointing_enable()
for batch in loader:                                    # before
    model(**batch).loss.backward()

model.train()
for batch in loader:                                    # after
    model(**batch).loss.backward()
```

## Fix safety
Reported only: `train()` also switches dropout on, which changes the losses.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext, Subject
from ckpt_surgery.codemods.providers.ineffective_switches import INEFFECTIVE_SWITCHES, NoEffect

RULE = Declaration(code="CKPT107", subject=Subject.SCRIPT, repair=RepairKind.NONE, applicability=Applicability.UNSAFE)
_WORDS = {
    NoEffect.EVALUATION: "{text} checkpoints nothing: after {cause}(...) on line {line} the model is in evaluation "
    "mode, in which transformers does not checkpoint; call {model}.train() before the loop",
    NoEffect.LEFT_TRAINING: "{text} checkpoints nothing once {cause}() on line {line} has run: the loop goes on in "
    "evaluation mode, in which transformers does not checkpoint; call {model}.train() after it",
    NoEffect.WRAPPED: "{text} is called on a wrapper ({cause} on line {line}) that has no such method: call it before "
    "the model is wrapped",
    NoEffect.PREPARED: "{text} is called on what {cause} on line {line} returned: in several processes a wrapper of "
    "DistributedDataParallel, which has no such method; call it before",
    NoEffect.UNREAD: "nothing reads the option {text}: it has no effect",
}


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding for each switch and each option that checkpoints nothing."""
    for path in context.tree.checked:
        for switch in context.tree.names.files[path][INEFFECTIVE_SWITCHES]:
            yield context.script_finding(RULE, path, switch.spot, _WORDS[switch.reason].format(**switch._asdict()))
