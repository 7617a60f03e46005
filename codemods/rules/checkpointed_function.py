"""A function is checkpointed in a way that loses gradient, or is recomputed on other values.

## What it does
Looks at checkpoint calls on functions instead of modules: local functions, lambdas, methods, `functools.partial`. A
helper that passes its arguments on to torch's function counts as a checkpoint call. Finds arguments by keyword where
the call is reentrant, gradient tensors that the function captures or gets inside a list, past state that it writes
twice, inputs that it writes into, and names that it looks up and that the loop around the call, or a later statement,
rebinds, also in a function that a local one returns (`make(layer)`). Such names are found whatever the checkpoint
function is called: an alias, transformers' own, a helper of another file. A helper whose code is not at hand is
reported as unknown, and only if its name contains `checkpoint`. A call of torch's function without `use_reentrant` is
information.

Whatever is checkpointed, `preserve_rng_state=False` is a fault in a file that sets a dropout above 0, and information
in any other. The same holds for a `torch._functorch.config.activation_memory_budget` below 1. A policy of
`create_selective_checkpoint_contexts` that decides by a counter of its own, and does not ask `ctx.is_recompute`, is
information, too.

## Why is this bad?
The recompute runs in the backward pass, when the loop has ended: a local function or lambda then finds the **last**
value of each name that it looks up. Every block is recomputed with the last layer, and the gradients are wrong
although the loss is the same, in both modes.

With `preserve_rng_state=False` the recompute draws other random numbers than the forward: each dropout has another
mask, and the gradients are wrong. Under a memory budget below 1, the backward of torch.compile may draw dropout again,
too: measured on torch 2.13, 1,020 of 2,036 dropped places got a gradient.

Earlier releases of torch ask a policy for each operator of the recompute, too. Its counter goes on from where the
forward left it, so that the recompute takes other results than were kept. Torch 2.13 asks in the forward only, and
such a policy merely keeps different results in each block.

The recompute begins with the inputs as they are then. Torch raises an error if a tensor that was passed by position
was written into; it does not notice one passed by keyword, and the gradients are wrong.

A reentrant checkpoint sees only tensors that are arguments themselves. The backward pass fails if two blocks
capture the same computed tensor (`Trying to backward through the graph a second time`), and may never end. If no
argument needs a gradient, as behind frozen embeddings, nothing in it is trained. Any keyword raises `Unexpected
keyword arguments`. Up to torch 2.13 a call without `use_reentrant` is reentrant.

## Example
```python
for layer in self.layers:                                                                         # before
    hidden_states = checkpoint(lambda x: layer(x, mask), hidden_states, use_reentrant=False)

for layer in self.layers:                                                                         # by hand
    hidden_states = checkpoint(lambda x, layer=layer: layer(x, mask), hidden_states, use_reentrant=False)
```

## Fix safety
Safe for keyword arguments: the call gets `use_reentrant=False`, which takes them; before, it raised. Unsafe for
`preserve_rng_state=False` over dropout, which becomes True: the dropout may lie in another model. All else is reported
only. Pass gradient tensors as arguments and bind the rest as defaults, as in the example.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from ckpt_surgery.codemods.facts.argument_names import is_gradient, is_past_state
from ckpt_surgery.codemods.facts.checkpoint_helpers import passed_on
from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext
from ckpt_surgery.codemods.providers.checkpoint_options import UNKEPT, Unkept
from ckpt_surgery.codemods.providers.checkpointed_functions import CHECKPOINTED, CheckpointedFunction, ReentrantOption
from ckpt_surgery.codemods.providers.script import SCRIPT
from ckpt_surgery.codemods.providers.selective_policies import COUNTING_POLICIES
from ckpt_surgery.codemods.repair import NewArgument, SourceRepair
from ckpt_surgery.codemods.repairs.calls import call_repair, name_repair
from ckpt_surgery.codemods.tree.branches import checkpoints_argument
from ckpt_surgery.codemods.tree.classes import Answer
from ckpt_surgery.codemods.wording import quoted

RULE = Declaration(code="CKPT012", repair=RepairKind.SAFE, commit="{}: the checkpoint call takes keyword arguments")
_OPTION = "use_reentrant"
_ANY_CACHE = frozenset({"cache"})
"""In a model's forward this is past state; in a plain function it may just as well hold quantized weights."""
_NAME = re.compile(r"[A-Za-z_]\w*")


def find(context: RuleContext) -> Iterator[Finding]:
    """Yield the findings of every checkpoint call on a function; late binding alone where CKPT002 reports the call."""
    for path in context.tree.checked:
        read = context.tree.names.read(path)[CHECKPOINTED]
        inline = {  # the checkpoint calls of blocks that have a direct call in the else branch: CKPT002 reports these
            call.span
            for owner in (context.tree.names.classes(path) if read.calls else ())
            for branch, call in owner.cls.checkpoint_calls
            if branch.has_else and context.tree.containers.classes_at(owner, owner.cls.paths_behind(branch, call))
        }
        for function in read.calls:
            for message, applicability in _faults(context, path, function, late_alone=function.span in inline):
                repairs: tuple[SourceRepair, ...] = ()
                if applicability is Applicability.SAFE:
                    option = NewArgument(None, _OPTION, "False")
                    arguments = [NewArgument(at, given.name) for at, given in enumerate(function.args)]
                    arguments = [option if given.keyword == _OPTION else given for given in arguments]
                    arguments += [] if option in arguments else [option]
                    repairs = (call_repair(context.tree, path, function.span, arguments),)
                scope, line = function.scope, function.first_line
                yield context.finding(RULE, path, function.span, scope, message, applicability, repairs, line)
        for late in read.late:
            answer = checkpoints_argument(context.tree, path, late)
            how = "the loop rebinds" if late.in_loop else "is rebound after the call"
            message, applicability = _late(late.function, late.names, how), Applicability.UNSAFE
            if answer is Answer.UNKNOWN:
                message, applicability = f"if {late.callees[0]} checkpoints it, {message}", Applicability.UNKNOWN
            if answer is not Answer.NO:
                yield context.finding(RULE, path, late.span, late.scope, message, applicability, (), late.first_line)
        for unkept in context.tree.names.read(path)[UNKEPT]:
            yield _unkept(context, path, unkept)
        for counting in context.tree.names.read(path)[COUNTING_POLICIES]:
            message = (
                f"{counting.policy} decides by `{counting.counter}`, which goes on counting where torch asks it again "
                "in the recompute (2.13 does not): it takes other results than it kept; ask ctx.is_recompute"
            )
            yield context.finding(RULE, path, counting.span, "", message, Applicability.INFO)


def _unkept(context: RuleContext, path: str, unkept: Unkept) -> Finding:
    """Return the finding about an option that makes a recompute draw other random numbers."""
    dropout, repairs = f"in a file with dropout (`{unkept.dropout}`)", tuple[SourceRepair, ...]()
    if unkept.is_budget:
        where = dropout if unkept.dropout else "is right only without dropout"
        message = f"{unkept.option} {where}: the backward of torch.compile may draw dropout again, with another mask"
    elif unkept.dropout:
        how = "the recompute draws another mask, and the gradients are wrong"
        message = f"preserve_rng_state=False {dropout}: {how}; leave it out"
        repairs = (name_repair(context.tree, path, unkept.span, "True"),)
    else:
        message = "preserve_rng_state=False is right only where nothing draws random numbers: "
        message += "each dropout has another mask"
    applicability = Applicability.UNSAFE if unkept.dropout else Applicability.INFO
    return context.finding(RULE, path, unkept.span, unkept.scope, message, applicability, repairs)


def _late(function: str, names: Collection[str], how: str) -> str:
    bound = quoted(f"{name}={name}" for name in names)
    return (
        f"{function} looks up {quoted(names)}, which {how}, and the recompute finds the last value: the gradients are "
        f"wrong, or the step stops; pass a tensor as an argument, and bind all else as a default: {bound}"
    )


def _faults(
    context: RuleContext, path: str, function: CheckpointedFunction, *, late_alone: bool
) -> Iterator[tuple[str, Applicability]]:
    """Yield what is wrong with a call, and the applicability. What is safe has a repair."""
    callee, option = function.callee, function.option
    rebound = [capture.name for capture in function.captures if capture.rebound]
    faults = [_late(callee, rebound, "the loop rebinds")] if rebound else []
    if late_alone:
        yield from ((fault, Applicability.UNSAFE) for fault in faults)
        return
    keywords = passed_on(argument.name for argument in function.args)
    if function.refused:
        message = f"{callee} gets {quoted(function.refused)} by keyword, which it does not take: pass it by position"
        yield message, Applicability.UNSAFE
    elif keywords and option in ("reentrant", "default"):
        said = "with use_reentrant=True" if option == "reentrant" else "without use_reentrant"
        message = f"{callee} gets {quoted(keywords)} by keyword, which a checkpoint {said} refuses: "
        yield message + "use_reentrant=False takes it", Applicability.SAFE
        option = "non_reentrant"  # after the repair
    past = _past(function)
    unclear = [name for name in past if name in _ANY_CACHE]
    if unclear:
        message = f"{callee} is given {quoted(unclear)}: if that is past state, the recompute writes it again"
        yield message, Applicability.UNKNOWN
    if len(past) > len(unclear):
        again = quoted(name for name in past if name not in _ANY_CACHE)
        faults.append(
            f"{callee} is given {again}, past state that the recompute writes again: pass None while checkpointing"
        )
    faults += _written(function, option)
    if option != "non_reentrant":
        faults += _lost(function, rebound)
    if faults:
        yield "; ".join(faults), Applicability.UNSAFE
    elif option == "default":
        script = context.tree.names.files[path][SCRIPT]
        if script and script.data_parallel:
            return  # CKPT104 looks at the call
        message = (
            f"{callee} is checkpointed without {_OPTION}, which means True up to torch 2.13: pass use_reentrant=False"
        )
        yield message, Applicability.INFO


def _written(function: CheckpointedFunction, option: ReentrantOption) -> Iterator[str]:
    """Yield a fault for each input that the function writes into: the recompute then begins with other values.

    Torch raises an error for inputs by position; in reentrant mode only for those with gradient.
    """
    for written in function.written:
        if written.by_keyword and option == "non_reentrant" and written.how in ("method", "operator"):
            yield (
                f"{function.callee} writes into `{written.name}`, which it gets by keyword: the recompute begins with "
                "what is written, and the gradients are wrong; write into a copy"
            )
        elif not written.by_keyword and (written.has_gradient or option == "non_reentrant"):
            yield (
                f"{function.callee} writes into `{written.name}`, which it is given: the backward pass raises a "
                "RuntimeError; write into a copy"
            )


def _lost(function: CheckpointedFunction, rebound: Collection[str]) -> Iterator[str]:
    """Yield a fault for each group of values whose gradient a reentrant checkpoint loses."""
    captured = [
        capture.name
        for capture in function.captures
        if capture.name not in rebound and (capture.holds_result or is_gradient(capture.name))
    ]
    if captured:
        yield (
            f"{function.callee} captures {quoted(captured)}: with use_reentrant=True the backward pass stops where "
            "two blocks share it; pass it as an argument, or use_reentrant=False"
        )
    containers = [
        argument.text
        for position, argument in enumerate(function.args)
        if position in function.containers
        or (argument.shape == "container" and any(map(is_gradient, _NAME.findall(argument.text))))
    ]
    if containers:
        yield (
            f"{function.callee} gets gradient tensors inside {quoted(containers)}, where use_reentrant=True sees "
            "none: pass each as an argument, or use_reentrant=False"
        )


def _past(function: CheckpointedFunction) -> list[str]:
    """Return the past state that the function gets, or captures and hands to a call."""
    names = [
        argument.text
        for argument in function.args[1:]
        if argument.is_value and any(name and is_past_state(name) for name in (argument.name, argument.text))
    ]
    names += [capture.name for capture in function.captures if capture.passed_on and is_past_state(capture.name)]
    return [name for name in dict.fromkeys(names) if name not in function.dropped]
