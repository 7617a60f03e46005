"""Explain the faults whose cause is known, mostly by how blocks were called in the run without checkpointing.

This adds explanations to faults; it neither finds nor drops any. A fault of unknown cause gets none.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from ckpt_surgery.measure.block_entries import AUTOCAST_STATES, HOOKS
from ckpt_surgery.measure.kinds import CauseKind, FaultKind
from ckpt_surgery.measure.observed_calls import CallFacts
from ckpt_surgery.measure.record import RunRecord, StepPart, input_name
from ckpt_surgery.measure.results import Fault, FaultCause, Mode
from ckpt_surgery.model_patches.release_names import CLAIM, FLAG, INNER_SWITCH
from ckpt_surgery.model_patches.vocabulary import PAST_STATE
from ckpt_surgery.runtime.blocks.discovery import Block
from ckpt_surgery.runtime.checkpoint.block_forward import BlockForward
from ckpt_surgery.text import listed
from ckpt_surgery.torch_names import NormBase

_NO_RUN = RunRecord(math.nan)
_SIGNS: Mapping[CauseKind, Callable[[CallFacts], Sequence[str] | bool]] = {
    CauseKind.NO_INPUT_GRADIENT: lambda facts: (
        not (facts.input_requires_grad or facts.keyword_gradient or facts.container_gradient)
    ),
    CauseKind.POSITIONAL_PAST_STATE: lambda facts: facts.positional_past,
    CauseKind.RETURNED_KEYWORD: lambda facts: [n for n in facts.returned if n in facts.keyword_gradient],
    CauseKind.KEYWORD_GRADIENT: lambda facts: facts.keyword_gradient,
    CauseKind.SHARED_WRITES: lambda facts: facts.mutated,
    CauseKind.WRITTEN_ARGUMENT: lambda facts: facts.written,
    CauseKind.GRADIENT_CONTAINER: lambda facts: facts.container_gradient,
    CauseKind.NESTED_OUTPUT: lambda facts: facts.nested_output,
    CauseKind.UNRETURNED_TENSOR: lambda facts: facts.leaks,
}
"""How each cause shows in the facts about a block: by the arguments concerned, or as true or false."""
_IN_REENTRANT = (
    CauseKind.RETURNED_KEYWORD,
    CauseKind.KEYWORD_GRADIENT,
    CauseKind.NO_INPUT_GRADIENT,
    CauseKind.SHARED_WRITES,
    CauseKind.GRADIENT_CONTAINER,
    CauseKind.NESTED_OUTPUT,
    CauseKind.UNRETURNED_TENSOR,
)
"""The causes that are looked for in reentrant mode only or first, the most telling first."""


@dataclass(frozen=True, slots=True)
class Case:
    """What faults are explained by: the model, its blocks by name, and the run without checkpointing.

    `run` is the run with checkpointing, if there is one.
    """

    model: nn.Module
    blocks: Mapping[str, Block]
    reference: RunRecord
    mode: Mode
    run: RunRecord = _NO_RUN

    @property
    def repaired(self) -> bool:
        """Whether `wrap_blocks` has wrapped blocks: then their classes and how they are called explain nothing."""
        return any(isinstance(vars(block.module).get("forward"), BlockForward) for block in self.blocks.values())

    @property
    def reentrant(self) -> bool:
        """Whether the step was to be reentrant, or is so by a switch of the model's own."""
        return self.mode == "reentrant" or self.run.reentrant

    def not_recomputed(self, fault: Fault) -> FaultCause | None:
        blocks = [self.blocks[name] for name in fault.subjects if name in self.blocks]
        in_evaluation = next((block for block in blocks if not block.module.training), None)
        if in_evaluation:
            return FaultCause(CauseKind.EVALUATION_MODE, {"module": in_evaluation.name})
        if self.repaired:
            return None
        if any(entries.backward > entries.forward > 0 for entries in self.run.entries.values()):
            return FaultCause(CauseKind.IN_THEIR_PLACE)
        switch = getattr(type(self.model), INNER_SWITCH, None)
        # transformers calls it instead of its own
        if switch is not None and "value" in inspect.signature(switch).parameters:
            model = next(kind.__name__ for kind in type(self.model).__mro__ if INNER_SWITCH in vars(kind))
            return FaultCause(CauseKind.OUTDATED_SWITCH, {"model": model})
        by_calls = self.gradients(fault) if self.reentrant else None
        plain = next((block for block in blocks if block.kind == "plain"), None)
        if plain and hasattr(self.model, CLAIM):
            return FaultCause(CauseKind.PLAIN_BLOCK, {"block": type(plain.module).__name__})
        if plain:
            return by_calls or FaultCause(CauseKind.NEVER_CHECKPOINTED, {"block": type(plain.module).__name__})
        replaced = next((block for block in blocks if "forward" in vars(block.module)), None)
        if replaced:
            return FaultCause(CauseKind.FORWARD_REPLACED, {"module": replaced.name})
        off = next((block for block in blocks if block.name in self.run.switched_off), None)
        if off is not None and by_calls is None:
            return FaultCause(CauseKind.NEVER_CHECKPOINTED, {"block": type(off.module).__name__})
        return by_calls

    def gradients(self, fault: Fault) -> FaultCause | None:
        if self.repaired:
            return None
        # what reentrant mode does to gradients cannot end a forward
        of_gradients = self.reentrant and not (self.run.error and self.run.error.part is StepPart.FORWARD)
        kinds = (
            *(_IN_REENTRANT if of_gradients else ()),
            CauseKind.POSITIONAL_PAST_STATE,
            CauseKind.SHARED_WRITES,
        )
        surest = self.own_generator() or self.other_argument() or self.other_state()
        by_calls = self.by_calls(*kinds, CauseKind.WRITTEN_ARGUMENT)
        return surest or by_calls or self.counted_again() or self.own_function()

    def by_calls(self, *kinds: CauseKind) -> FaultCause | None:
        """Return the first of these causes that shows in how blocks were called, with the first block and argument."""
        for kind in kinds:
            for name, facts in self.reference.calls.items():
                block, sign = self.blocks[name], _SIGNS[kind](facts)
                if kind is CauseKind.NO_INPUT_GRADIENT:
                    trained = any(parameter.requires_grad for parameter in block.module.parameters())
                    sign = bool(facts.backward_calls or trained) and (bool(sign) or name in self.run.without_gradient)
                if sign:
                    argument = {} if isinstance(sign, bool) else {"argument": sign[0]}
                    return FaultCause(kind, {"block": type(block.module).__name__, **argument})
        return None

    def other_state(self) -> FaultCause | None:
        for module, state in self.run.differing_states.items():
            if state in AUTOCAST_STATES:
                return FaultCause(CauseKind.OTHER_AUTOCAST, {"module": module, "what": state})
            if state == HOOKS:
                return FaultCause(CauseKind.OTHER_HOOKS, {"module": module})
            return FaultCause(CauseKind.OTHER_ATTRIBUTE, {"module": module, "attribute": state})
        return None

    def own_generator(self) -> FaultCause | None:
        names = (name for name in self.run.drawn_from if name not in self.reference.drawn_from)
        return next((FaultCause(CauseKind.OWN_GENERATOR, {"attribute": name}) for name in names), None)

    def counted_again(self) -> FaultCause | None:
        names = (name for name in self.run.changed_numbers if name not in self.reference.changed_numbers)
        return next((FaultCause(CauseKind.COUNTED_AGAIN, {"attribute": name}) for name in names), None)

    def other_argument(self) -> FaultCause | None:
        """Find a tensor of another shape than without checkpointing, or a missing one. Past state may be missing."""
        for name, ours in self.reference.given_shapes.items():
            theirs = self.run.given_shapes.get(name, ours)
            argument = next((n for n in ours if n not in PAST_STATE and ours[n] != theirs.get(n)), None)
            if argument is not None:
                block = type(self.blocks[name].module).__name__
                return FaultCause(CauseKind.OTHER_ARGUMENT, {"block": block, "argument": argument})
        return None

    def own_function(self) -> FaultCause | None:
        if self.run.only_packs:
            return FaultCause(CauseKind.OWN_PACKING)
        if not self.run.functions or any(entries.backward for entries in self.run.entries.values()):
            return None
        return FaultCause(CauseKind.OWN_FUNCTION, {"functions": listed(self.run.functions)})

    def cache_written(self, fault: Fault) -> FaultCause | None:
        if not any(name.startswith(input_name("")) for name in fault.subjects):
            return None
        if fault.kind is FaultKind.CACHE_STEP_RAISED and set(fault.subjects).isdisjoint(self.run.written):
            return None
        by_position = None if self.repaired else self.by_calls(CauseKind.POSITIONAL_PAST_STATE)
        return by_position or FaultCause(CauseKind.CACHE_WRITTEN_AGAIN)

    def buffer_changed(self, fault: Fault) -> FaultCause | None:
        modules = dict(self.model.named_modules(remove_duplicate=False))
        owners = {name.rpartition(".")[0] for name in fault.subjects}
        of_norms = any(isinstance(modules.get(owner), NormBase) for owner in owners)
        return FaultCause(CauseKind.BATCH_NORM_TWICE) if of_norms else None

    def not_switched_on(self, fault: Fault) -> FaultCause | None:
        """Explain a refused switch: transformers refuses a model in which no module has a flag for it."""
        if not hasattr(self.model, CLAIM) or any(hasattr(module, FLAG) for module in self.model.modules()):
            return None
        plain = next((block for block in self.blocks.values() if block.kind == "plain"), None)
        if plain is None:
            return FaultCause(CauseKind.UNREACHABLE)
        return FaultCause(CauseKind.PLAIN_BLOCK, {"block": type(plain.module).__name__})

    def nested(self, names: Iterable[str]) -> FaultCause | None:
        for block in (self.blocks[name] for name in names if name in self.blocks):
            if block.inside:
                outer = type(self.blocks[block.inside].module).__name__
                return FaultCause(CauseKind.NESTED_BLOCKS, {"block": type(block.module).__name__, "outer": outer})
        return None


_EXPLAIN: Mapping[FaultKind, Callable[[Case, Fault], FaultCause | None]] = {
    FaultKind.NOT_SWITCHED_ON: Case.not_switched_on,
    FaultKind.REFERENCE_RAISED: Case.gradients,
    FaultKind.STEP_RAISED: Case.gradients,
    FaultKind.BACKWARD_UNFINISHED: Case.gradients,
    FaultKind.NO_BLOCKS: lambda _case, _fault: FaultCause(CauseKind.UNREACHABLE),
    FaultKind.NOT_RECOMPUTED: Case.not_recomputed,
    FaultKind.RECOMPUTE_COUNT: lambda case, fault: case.nested(fault.subjects),
    FaultKind.GRADIENT_LOST: Case.gradients,
    FaultKind.GRADIENT_GAINED: Case.gradients,
    FaultKind.LOSS_VALUE: Case.gradients,
    FaultKind.OUTPUT_VALUE: Case.gradients,
    FaultKind.GRADIENT_VALUE: Case.gradients,
    FaultKind.BUFFER_CHANGED: Case.buffer_changed,
    FaultKind.LOST_IN_REFERENCE: lambda case, _fault: case.by_calls(CauseKind.NO_INPUT_GRADIENT),
    FaultKind.CACHE_WRITTEN: Case.cache_written,
    FaultKind.WRITTEN_AGAIN: Case.cache_written,
    FaultKind.CACHE_STEP_RAISED: Case.cache_written,
    FaultKind.RNG_NOT_RESTORED: lambda _case, _fault: FaultCause(CauseKind.RNG_NOT_RESTORED),
    FaultKind.RNG_MOVED: lambda _case, _fault: FaultCause(CauseKind.RNG_NOT_RESTORED),
    FaultKind.RECOMPUTED_BYTES: lambda case, _fault: case.by_calls(CauseKind.SHARED_WRITES),
    FaultKind.LEFT_BYTES: lambda case, _fault: case.by_calls(CauseKind.SHARED_WRITES),
    FaultKind.GROWING_BYTES: lambda case, _fault: case.by_calls(CauseKind.SHARED_WRITES),
    FaultKind.BACKWARD_FLOPS: lambda case, _fault: None if case.repaired else case.nested(case.blocks),
    FaultKind.AUTOCAST_NOT_RESTORED: lambda case, _fault: case.other_state(),
    FaultKind.LOOP_DIFFERS: lambda case, _fault: case.own_generator() or case.counted_again(),
}


def explain(faults: Sequence[Fault], case: Case) -> tuple[Fault, ...]:
    """Add the known causes to faults, and return them in the same order."""
    explained = [
        replace(fault, explanation=_EXPLAIN[fault.kind](case, fault)) if fault.kind in _EXPLAIN else fault
        for fault in faults
    ]
    causes = {fault.kind: fault.explanation for fault in reversed(explained)}  # of the first fault of each kind
    no_recompute, other_dropout = causes.get(FaultKind.NOT_RECOMPUTED), causes.get(FaultKind.RNG_NOT_RESTORED)
    for index, fault in enumerate(explained):
        if fault.level == "cost" and fault.explanation is None:  # without a recompute no memory is saved
            explained[index] = replace(fault, explanation=no_recompute)
        elif fault.level == "values" and other_dropout:
            explained[index] = replace(fault, explanation=other_dropout)
    return tuple(explained)
