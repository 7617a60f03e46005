"""Explain faults where the cause is known, from how blocks were called in the run without checkpointing.

This adds explanations to faults; it neither finds nor drops any. An unknown cause is left out.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from ckpt_surgery.measure.call_state import AUTOCAST_STATES, HOOKS
from ckpt_surgery.measure.compare import input_name, only_packs
from ckpt_surgery.measure.kinds import CauseKind, FaultKind
from ckpt_surgery.measure.observed_calls import CallFacts
from ckpt_surgery.measure.record import RunRecord, StepPart
from ckpt_surgery.measure.results import Fault, FaultCause, Mode
from ckpt_surgery.model_patches.release_names import CLAIM, FLAG, INNER_SWITCH
from ckpt_surgery.model_patches.vocabulary import PAST_STATE
from ckpt_surgery.runtime.blocks.discovery import Block
from ckpt_surgery.runtime.checkpoint.block_forward import BlockForward
from ckpt_surgery.text import listed
from ckpt_surgery.torch_names import NormBase

_NO_RUN = RunRecord(math.nan)


@dataclass(frozen=True, slots=True)
class Case:
    """The facts about the model when faults are explained: the run without checkpointing, blocks by name.

    `run` is the run with checkpointing, where there is one.
    """

    model: nn.Module
    blocks: Mapping[str, Block]
    reference: RunRecord
    mode: Mode
    run: RunRecord = _NO_RUN

    @property
    def repaired(self) -> bool:
        """Whether `wrap_blocks` has been here: then how blocks are called, and what they are, explains nothing."""
        return any(isinstance(vars(block.module).get("forward"), BlockForward) for block in self.blocks.values())

    @property
    def reentrant(self) -> bool:
        """Whether the step was to be reentrant, or is so by a switch of the model's own."""
        return self.mode == "reentrant" or self.run.reentrant

    def calls(self, matches: Callable[[CallFacts], object]) -> Iterator[tuple[str, CallFacts]]:
        """Yield the class name and facts of each block with a call that `matches`."""
        for name, facts in self.reference.calls.items():
            if matches(facts):
                yield type(self.blocks[name].module).__name__, facts


def explain(faults: Sequence[Fault], case: Case) -> tuple[Fault, ...]:
    """Add the known causes to faults, and return them in the same order."""
    explained = [
        replace(fault, explanation=_EXPLAIN[fault.kind](fault, case)) if fault.kind in _EXPLAIN else fault
        for fault in faults
    ]
    return tuple(_inherited(fault, explained) for fault in explained)


def _inherited(fault: Fault, faults: Sequence[Fault]) -> Fault:
    """Explain one fault by another: no recompute saves no memory, and other dropout gives other values."""
    missed = next((f for f in faults if f.kind is FaultKind.NOT_RECOMPUTED), None)
    if fault.level == "cost" and fault.explanation is None and missed:
        return replace(fault, explanation=missed.explanation)
    drifted = next((f for f in faults if f.kind is FaultKind.RNG_NOT_RESTORED), None)
    return replace(fault, explanation=drifted.explanation) if fault.level == "values" and drifted else fault


def _not_recomputed(fault: Fault, case: Case) -> FaultCause | None:
    blocks = [case.blocks[name] for name in fault.subjects if name in case.blocks]
    in_evaluation = next((block for block in blocks if not block.module.training), None)
    if in_evaluation:
        return FaultCause(CauseKind.EVALUATION_MODE, {"module": in_evaluation.name})
    if case.repaired:
        return None
    if any(entries.backward > entries.forward > 0 for entries in case.run.entries.values()):
        return FaultCause(CauseKind.IN_THEIR_PLACE)
    if model := _outdated_switch(case.model):
        return FaultCause(CauseKind.OUTDATED_SWITCH, {"model": model})
    by_calls = _gradients(fault, case) if case.reentrant else None
    plain = next((block for block in blocks if block.kind == "plain"), None)
    if plain and hasattr(case.model, CLAIM):
        return FaultCause(CauseKind.PLAIN_BLOCK, {"block": _class(plain)})
    if plain:
        return by_calls or FaultCause(CauseKind.NEVER_CHECKPOINTED, {"block": _class(plain)})
    replaced = next((block for block in blocks if "forward" in vars(block.module)), None)
    if replaced:
        return FaultCause(CauseKind.FORWARD_REPLACED, {"module": replaced.name})
    off = next((block for block in blocks if block.name in case.run.off), None)
    if off is not None and by_calls is None:
        return FaultCause(CauseKind.NEVER_CHECKPOINTED, {"block": _class(off)})
    return by_calls


def _outdated_switch(model: nn.Module) -> str:
    """Return the class whose method transformers would call instead of its own; empty where there is none."""
    switch = getattr(type(model), INNER_SWITCH, None)
    if switch is None or "value" not in inspect.signature(switch).parameters:
        return ""
    return next(kind.__name__ for kind in type(model).__mro__ if INNER_SWITCH in vars(kind))


def _recompute_count(fault: Fault, case: Case) -> FaultCause | None:
    blocks = (case.blocks[name] for name in fault.subjects if name in case.blocks)
    inner = next((block for block in blocks if block.inside), None)
    return _nested(inner, case) if inner else None


def _gradients(_fault: Fault, case: Case) -> FaultCause | None:
    if case.repaired:
        return None
    # what reentrant mode does to gradients ends no forward
    of_gradients = case.reentrant and not (case.run.error and case.run.error.part is StepPart.FORWARD)
    by_calls = (*_REENTRANT, _positional_past) if of_gradients else (_positional_past, _shared_writes)
    first, last = (_own_generator, _other_argument, _other_state), (_written_argument, _counted_again, _own_function)
    causes = (*first, *by_calls, *last)
    return next((explanation for cause in causes if (explanation := cause(case))), None)


def _other_state(case: Case) -> FaultCause | None:
    for module, what in case.run.states.items():
        if what in AUTOCAST_STATES:
            return FaultCause(CauseKind.OTHER_AUTOCAST, {"module": module, "what": what})
        if what == HOOKS:
            return FaultCause(CauseKind.OTHER_HOOKS, {"module": module})
        return FaultCause(CauseKind.OTHER_ATTRIBUTE, {"module": module, "attribute": what})
    return None


def _own_generator(case: Case) -> FaultCause | None:
    drawn = (name for name in case.run.drawn if name not in case.reference.drawn)
    return next((FaultCause(CauseKind.OWN_GENERATOR, {"attribute": name}) for name in drawn), None)


def _counted_again(case: Case) -> FaultCause | None:
    counted = (name for name in case.run.counted if name not in case.reference.counted)
    return next((FaultCause(CauseKind.COUNTED_AGAIN, {"attribute": name}) for name in counted), None)


def _other_argument(case: Case) -> FaultCause | None:
    """Find a tensor that differs from the plain call's, or is missing. Past state is left out on purpose."""
    for name, ours in case.reference.given.items():
        theirs = case.run.given.get(name, ours)
        argument = next((n for n in ours if n not in PAST_STATE and ours[n] != theirs.get(n)), None)
        if argument is not None:
            return FaultCause(CauseKind.OTHER_ARGUMENT, {"block": _class(case.blocks[name]), "argument": argument})
    return None


def _positional_past(case: Case) -> FaultCause | None:
    for block, facts in case.calls(lambda f: f.positional_past):
        return FaultCause(CauseKind.POSITIONAL_PAST_STATE, {"block": block, "argument": facts.positional_past[0]})
    return None


def _returned_keyword(case: Case) -> FaultCause | None:
    for block, facts in case.calls(lambda f: set(f.returned) & set(f.keyword_gradient)):
        argument = next(name for name in facts.returned if name in facts.keyword_gradient)
        return FaultCause(CauseKind.RETURNED_KEYWORD, {"block": block, "argument": argument})
    return None


def _keyword_gradient(case: Case) -> FaultCause | None:
    for block, facts in case.calls(lambda f: f.keyword_gradient):
        return FaultCause(CauseKind.KEYWORD_GRADIENT, {"block": block, "argument": facts.keyword_gradient[0]})
    return None


def _shared_writes(case: Case) -> FaultCause | None:
    for block, facts in case.calls(lambda f: f.mutated):
        return FaultCause(CauseKind.SHARED_WRITES, {"block": block, "argument": facts.mutated[0]})
    return None


def _written_argument(case: Case) -> FaultCause | None:
    for block, facts in case.calls(lambda f: f.written):
        return FaultCause(CauseKind.WRITTEN_ARGUMENT, {"block": block, "argument": facts.written[0]})
    return None


def _own_function(case: Case) -> FaultCause | None:
    if only_packs(case.run):
        return FaultCause(CauseKind.OWN_PACKING)
    if not case.run.functions or any(entries.backward for entries in case.run.entries.values()):
        return None
    return FaultCause(CauseKind.OWN_FUNCTION, {"functions": listed(case.run.functions)})


def _gradient_container(case: Case) -> FaultCause | None:
    for block, facts in case.calls(lambda f: f.container_gradient):
        return FaultCause(CauseKind.GRADIENT_CONTAINER, {"block": block, "argument": facts.container_gradient[0]})
    return None


def _nested_output(case: Case) -> FaultCause | None:
    for block, _ in case.calls(lambda f: f.nested_output):
        return FaultCause(CauseKind.NESTED_OUTPUT, {"block": block})
    return None


def _unreturned_tensor(case: Case) -> FaultCause | None:
    for block, _ in case.calls(lambda f: f.leaks):
        return FaultCause(CauseKind.UNRETURNED_TENSOR, {"block": block})
    return None


def _no_input_gradient(case: Case) -> FaultCause | None:
    for name, facts in case.reference.calls.items():
        block = case.blocks[name]
        trained = facts.backward_calls or any(parameter.requires_grad for parameter in block.module.parameters())
        needs = facts.input_requires_grad or facts.keyword_gradient or facts.container_gradient
        if trained and (not needs or name in case.run.without_gradient):
            return FaultCause(CauseKind.NO_INPUT_GRADIENT, {"block": _class(block)})
    return None


_REENTRANT: tuple[Callable[[Case], FaultCause | None], ...] = (
    _returned_keyword,
    _keyword_gradient,
    _no_input_gradient,
    _shared_writes,
    _gradient_container,
    _nested_output,
    _unreturned_tensor,
)
"""What may be wrong in reentrant mode, the most telling first."""


def _cache_written(fault: Fault, case: Case) -> FaultCause | None:
    if not any(name.startswith(input_name("")) for name in fault.subjects):
        return None
    if fault.kind is FaultKind.CACHE_STEP_RAISED and set(fault.subjects).isdisjoint(case.run.written):
        return None
    by_position = None if case.repaired else _positional_past(case)
    return by_position or FaultCause(CauseKind.CACHE_WRITTEN_AGAIN)


def _buffer_changed(fault: Fault, case: Case) -> FaultCause | None:
    modules = dict(case.model.named_modules(remove_duplicate=False))
    owners = {name.rpartition(".")[0] for name in fault.subjects}
    if any(isinstance(modules.get(owner), NormBase) for owner in owners):
        return FaultCause(CauseKind.BATCH_NORM_TWICE)
    return None


def _random_state(_fault: Fault, _case: Case) -> FaultCause | None:
    return FaultCause(CauseKind.RNG_NOT_RESTORED)


def _not_switched_on(_fault: Fault, case: Case) -> FaultCause | None:
    """Explain a refused switch: transformers refuses a model in which no module has a flag for it."""
    if not hasattr(case.model, CLAIM) or any(hasattr(module, FLAG) for module in case.model.modules()):
        return None
    plain = next((block for block in case.blocks.values() if block.kind == "plain"), None)
    return FaultCause(CauseKind.PLAIN_BLOCK, {"block": _class(plain)}) if plain else FaultCause(CauseKind.UNREACHABLE)


def _backward_flops(_fault: Fault, case: Case) -> FaultCause | None:
    nested = next((block for block in case.blocks.values() if block.inside), None)
    return _nested(nested, case) if nested and not case.repaired else None


def _unreachable(_fault: Fault, _case: Case) -> FaultCause | None:
    return FaultCause(CauseKind.UNREACHABLE)


def _nested(block: Block, case: Case) -> FaultCause:
    names = {"block": _class(block), "outer": _class(case.blocks[block.inside])}
    return FaultCause(CauseKind.NESTED_BLOCKS, names)


_EXPLAIN: Mapping[FaultKind, Callable[[Fault, Case], FaultCause | None]] = {
    FaultKind.NOT_SWITCHED_ON: _not_switched_on,
    FaultKind.REFERENCE_RAISED: _gradients,
    FaultKind.STEP_RAISED: _gradients,
    FaultKind.BACKWARD_UNFINISHED: _gradients,
    FaultKind.NO_BLOCKS: _unreachable,
    FaultKind.NOT_RECOMPUTED: _not_recomputed,
    FaultKind.RECOMPUTE_COUNT: _recompute_count,
    FaultKind.GRADIENT_LOST: _gradients,
    FaultKind.GRADIENT_GAINED: _gradients,
    FaultKind.LOSS_VALUE: _gradients,
    FaultKind.OUTPUT_VALUE: _gradients,
    FaultKind.GRADIENT_VALUE: _gradients,
    FaultKind.BUFFER_CHANGED: _buffer_changed,
    FaultKind.LOST_IN_REFERENCE: lambda _fault, case: _no_input_gradient(case),
    FaultKind.CACHE_WRITTEN: _cache_written,
    FaultKind.WRITTEN_AGAIN: _cache_written,
    FaultKind.CACHE_STEP_RAISED: _cache_written,
    FaultKind.RNG_NOT_RESTORED: _random_state,
    FaultKind.RNG_MOVED: _random_state,
    FaultKind.RECOMPUTED_BYTES: lambda _fault, case: _shared_writes(case),
    FaultKind.LEFT_BYTES: lambda _fault, case: _shared_writes(case),
    FaultKind.GROWING_BYTES: lambda _fault, case: _shared_writes(case),
    FaultKind.BACKWARD_FLOPS: _backward_flops,
    FaultKind.AUTOCAST_NOT_RESTORED: lambda _fault, case: _other_state(case),
    FaultKind.LOOP_DIFFERS: lambda _fault, case: _own_generator(case) or _counted_again(case),
}


def _class(block: Block) -> str:
    return type(block.module).__name__
