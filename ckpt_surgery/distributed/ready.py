"""`ddp_ready`: find what a DistributedDataParallel run of a model needs, by its structure or by running steps.

The model is left as it was. `structure` looks at the parts of a model; the needs and their words are in `needs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ckpt_surgery.distributed.needs import DDPReady, Need, NeedReason
from ckpt_surgery.distributed.structure import (
    experts_of,
    layers_dropped,
    outer_blocks,
    reentrant_modules,
    shared_parameters,
    towers_of,
    trainable,
)
from ckpt_surgery.errors import DistributedError
from ckpt_surgery.long_sequences.tiled_call import with_parameters
from ckpt_surgery.measure.loss import loss_of
from ckpt_surgery.measure.restore import model_state_kept
from ckpt_surgery.model_patches.release_names import FLAG, FUNCTION
from ckpt_surgery.text import error_line


@dataclass(frozen=True, slots=True)
class _ObservedStep:
    """The observations of one step: its parameters, and the number of calls of each block.

    `unused` parameters got no gradient; those `inside` got one, but from a backward inside the backward: the graph of
    the loss does not reach them.
    """

    unused: frozenset[str]
    inside: frozenset[str]
    calls: Mapping[str, int]


def ddp_ready(model: nn.Module, *batches: Mapping[str, Any]) -> DDPReady:
    """Say what a DistributedDataParallel run of `model` needs, and why. The model comes back as it was.

    Without batches the structure decides: parameters that blocks share, towers and projectors that a text-only step
    does not use (frozen ones need nothing), LayerDrop, and experts in lists. What the structure cannot tell for sure
    is put as "may". No needs then mean that no optional part is known, not that there is none: a batch of each kind
    makes sure. Only batches show heads and poolers that a loss does not use, a tower that runs for images and again
    for videos, layers of a text model that only read what a tower gives, and towers that are neither models of their
    own nor have a configuration of their own.

    With batches, what was seen decides, so give a batch of each kind that the run has; for LayerDrop and experts,
    which go by chance, the structure still decides. Each batch is run forward and backward on this process alone, in
    training mode, without DistributedDataParallel and without a collective. The steps use stand-ins for the trainable
    parameters, which share their memory: hooks on parameters are not called. They cost a copy of the parameters and
    buffers, and their gradients.

    Measured on a tiny Qwen2-VL: with static_graph=True, a step with images and then one of text leaves all 27
    gradients of the latter as each rank has them, not averaged, and nothing is raised before the step after it.

    Args:
        model: a model of transformers, also inside PEFT, or any module; the one inside DistributedDataParallel counts.
        batches: the keyword arguments of one step each. The loss is the output's own, or that of
            `ckpt_surgery.measure.loss.loss_of`.

    Returns:
        The needs, with their reasons. Print it; its `options` are for DistributedDataParallel.

    Raises:
        DistributedError: `model` is not a module, a batch is not a mapping, or a step fails.
    """
    target = _checked(model, batches)
    steps = _run(target, batches)
    by_chance = {NeedReason.LAYER_DROP: layers_dropped(target), NeedReason.ROUTED_EXPERTS: experts_of(target)}
    chances = [Need(reason, names) for reason, names in by_chance.items() if names]
    searched = [*_by_steps(target, steps, chances), *chances]
    if not steps and (towers := towers_of(target)):
        searched.insert(0, Need(NeedReason.OPTIONAL_INPUT, towers))
    needs = list(searched)
    if any(need.reason is not NeedReason.NEVER_USED for need in searched):
        needs.append(Need(NeedReason.STEPS_DIFFER))
    # reentrant checkpointing marks a parameter ready more than once if it is shared, or if its block is called again
    called_again = {name for step in steps for name, times in step.calls.items() if times > 1}
    called = {id(p) for name in called_again for p in target.get_submodule(name).parameters()}
    shared = set(shared_parameters(target))
    twice = tuple(name for name, p in trainable(target).items() if name in shared or id(p) in called)
    if twice:
        needs.append(Need(NeedReason.READY_TWICE, twice))
    if searched:
        needs.append(Need(NeedReason.SEARCH_BLIND))
    inside = {name for step in steps for name in step.inside} if searched else set()
    if inside:
        needs.append(Need(NeedReason.INNER_BACKWARD, tuple(sorted(inside))))
    reentrant = reentrant_modules(target) if twice or searched else ()
    if reentrant_now := tuple(name for name, module, _ in reentrant if getattr(module, FLAG, False)):
        needs.append(Need(NeedReason.REENTRANT_NOW, reentrant_now))
    return DDPReady(type(target).__name__, tuple(needs), measured=bool(steps))


def _checked(model: Any, batches: Sequence[Any]) -> nn.Module:
    """Return the model that DistributedDataParallel is to hold, or holds. Raises DistributedError."""
    if not isinstance(model, nn.Module):
        raise DistributedError(f"the model is of type {type(model).__name__}: give a torch.nn.Module")
    if isinstance(model, nn.DataParallel):
        raise DistributedError("DataParallel runs copies of its model in one process: give model.module instead")
    for number, batch in enumerate(batches):
        if not isinstance(batch, Mapping):
            kind = type(batch).__name__
            raise DistributedError(f"batch {number} is of type {kind}: give a dict of the model's keyword arguments")
    if batches and any(parameter.is_inference() for parameter in model.parameters()):
        raise DistributedError("the model was made in inference mode and cannot be trained: make it outside of that")
    return model.module if isinstance(model, DistributedDataParallel) else model


def _by_steps(model: nn.Module, steps: Sequence[_ObservedStep], chances: Sequence[Need]) -> list[Need]:
    """Return the needs that the steps showed, for parameters that are not left to chance."""
    if not steps:
        return []
    by_chance = {id(p) for need in chances for name in need.names for p in model.get_submodule(name).parameters()}
    sure = {name for name, parameter in trainable(model).items() if id(parameter) not in by_chance}
    never = sure.intersection(*(step.unused for step in steps))
    at_times = sure.intersection(name for step in steps for name in step.unused) - never
    by_reason = {NeedReason.NEVER_USED: never, NeedReason.USED_AT_TIMES: at_times}
    return [Need(reason, tuple(sorted(names))) for reason, names in by_reason.items() if names]


def _run(model: nn.Module, batches: Sequence[Mapping[str, Any]]) -> list[_ObservedStep]:
    """Run a step for each batch. Raises DistributedError if one fails."""
    steps = []
    with torch.inference_mode(False), model_state_kept(model), _stand_ins(model) as pairs:
        for _, module, non_reentrant in reentrant_modules(model):  # reentrant mode may lose gradients
            vars(module)[FUNCTION] = non_reentrant
        if not model.training:
            model.train()
        for number, batch in enumerate(batches):
            try:
                steps.append(_step(model, batch, pairs))
            except Exception as error:
                failure = f"batch {number} fails without DistributedDataParallel too: {error_line(error)}"
                raise DistributedError(failure) from error
    return steps


def _step(model: nn.Module, batch: Mapping[str, Any], pairs: Mapping[str, Sequence[nn.Parameter]]) -> _ObservedStep:
    # the calls of the outermost blocks are counted, each under its first name
    calls: Counter[str] = Counter()
    names = {module: name for name, module in reversed(outer_blocks(model).items())}
    handles = [
        module.register_forward_pre_hook(lambda *_, name=name: calls.update([name])) for module, name in names.items()
    ]
    try:
        with torch.enable_grad():
            loss = loss_of(model(**batch))
    finally:
        for handle in handles:
            handle.remove()
    reached = _leaves(loss)
    # not `autograd.grad`, which does not see what a custom backward accumulates by a backward of its own
    loss.backward()  # type: ignore[no-untyped-call]
    unused = frozenset(name for name, pair in pairs.items() if all(parameter.grad is None for parameter in pair))
    outside = {name for name, pair in pairs.items() if any(id(parameter) in reached for parameter in pair)}
    for pair in pairs.values():
        for parameter in pair:
            parameter.grad = None
    return _ObservedStep(unused, frozenset(pairs) - unused - outside, dict(calls))


def _leaves(loss: Tensor) -> set[int]:
    """Return the ids of the tensors at which the graph of the loss ends, as DistributedDataParallel looks for them."""
    waiting, seen, leaves = [loss.grad_fn], set[Any](), set[int]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            leaves.add(id(leaf))
        waiting.extend(following for following, _ in node.next_functions)
    return leaves


@contextmanager
def _stand_ins(model: nn.Module) -> Iterator[Mapping[str, Sequence[nn.Parameter]]]:
    """Put another parameter over the same memory in the place of each trainable one; yield both, by name.

    A reducer does not notice the step then: its hooks are on the original. References to parameters that modules keep
    elsewhere stay, so that either of the two may get the gradient.
    """
    own = trainable(model)
    others = {parameter: nn.Parameter(parameter.detach()) for parameter in own.values()}
    for parameter, other in others.items():
        vars(other).update(vars(parameter))
    with with_parameters(model, others):
        yield {name: (parameter, others[parameter]) for name, parameter in own.items()}
