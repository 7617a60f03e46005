"""Why a fault is there, where that is known: from how blocks were called in the run without checkpointing.

Adds a sentence and a rule code to faults; it neither finds nor drops any. What is not known stays unsaid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from ckpt_surgery.codemods import cause_of
from ckpt_surgery.codemods.declaration import Observation
from ckpt_surgery.measure.observed_calls import CallFacts
from ckpt_surgery.measure.results import Fault, Mode
from ckpt_surgery.measure.step import RunRecord
from ckpt_surgery.runtime.block_forward import BlockForward
from ckpt_surgery.runtime.discovery import Block

USES_NO_CACHE = (
    "It computes otherwise without its cache, which checkpointing switches off: give use_cache=False to compare."
)
"""Why gradients differ where those of a run without checkpointing do as well, once its cache is off."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is known about the model when faults are explained: the run without checkpointing, blocks by name."""

    model: nn.Module
    blocks: Mapping[str, Block]
    reference: RunRecord
    mode: Mode

    @property
    def repaired(self) -> bool:
        """Whether `wrap_blocks` has been here: then how blocks are called, and what they are, explains nothing."""
        return any(isinstance(vars(block.module).get("forward"), BlockForward) for block in self.blocks.values())

    def calls(self, matches: Callable[[CallFacts], object]) -> Iterator[tuple[str, CallFacts]]:
        """Blocks that were called in a way that `matches` sees: class name and facts."""
        for name, facts in self.reference.calls.items():
            if matches(facts):
                yield type(self.blocks[name].module).__name__, facts


Cause = tuple[str, str]
_UNKNOWN: Cause = ("", "")


def explain(faults: Sequence[Fault], case: Case) -> tuple[Fault, ...]:
    """The same faults, in the same order, with their causes where they are known."""
    found = []
    for fault in faults:
        cause, rule = _EXPLAIN[fault.level](fault, case) if fault.level in _EXPLAIN else _UNKNOWN
        found.append(replace(fault, cause=cause, rule=rule or fault.rule))
    return tuple(_inherited(fault, found) for fault in found)


def _inherited(fault: Fault, faults: Sequence[Fault]) -> Fault:
    """What one fault explains of another: no recompute saves no memory, other dropout gives other values."""
    missed = next((f for f in faults if f.level == "recompute" and f.seen == "none"), None)
    if fault.level == "cost" and not fault.cause and missed:
        return replace(fault, cause=missed.cause, rule=missed.rule)
    slipped = next((f for f in faults if f.level == "state" and "randomness" in f.expected), None)
    return replace(fault, cause=slipped.cause, rule=slipped.rule) if fault.level == "values" and slipped else fault


def _recompute(fault: Fault, case: Case) -> Cause:
    known = [case.blocks[name] for name in fault.subjects if name in case.blocks]
    plain = [block for block in known if block.kind == "plain"]
    if fault.seen == "none":
        asleep = [block for block in known if not block.module.training]
        replaced = [block for block in known if "forward" in vars(block.module)]
        cut = _gradients(fault, case) if case.mode == "reentrant" else _UNKNOWN
        if asleep:
            return f"{asleep[0].name} is in evaluation mode, in which nothing is checkpointed.", ""
        if case.repaired:
            return _UNKNOWN
        if plain and hasattr(case.model, "supports_gradient_checkpointing"):
            return cause_of(Observation.PLAIN_BLOCK, block=_kind(plain[0]))
        if plain:
            return cut if cut != _UNKNOWN else (f"Nothing checkpoints {_kind(plain[0])}.", "")
        if replaced:
            return f"The forward of {replaced[0].name} was replaced, and checkpointing with it.", ""
        return cut
    inner = [block for block in known if block.inside]
    if inner and "entries a step" in fault.expected:
        return _nested(inner[0], case)
    return _UNKNOWN


def _gradients(fault: Fault, case: Case) -> Cause:
    if case.repaired:
        return _UNKNOWN
    ways = (*_REENTRANT, _past) if case.mode == "reentrant" else (_past, _written)
    return next((cause for way in ways if (cause := way(case))), _UNKNOWN)


def _past(case: Case) -> Cause | None:
    for kind, facts in case.calls(lambda f: f.positional_past):
        return cause_of(Observation.POSITIONAL_PAST_STATE, block=kind, argument=facts.positional_past[0])
    return None


def _returned(case: Case) -> Cause | None:
    for kind, facts in case.calls(lambda f: set(f.returned) & set(f.keyword_gradient)):
        name = next(name for name in facts.returned if name in facts.keyword_gradient)
        return cause_of(Observation.RETURNED_KEYWORD, block=kind, argument=name)
    return None


def _keyword(case: Case) -> Cause | None:
    for kind, facts in case.calls(lambda f: f.keyword_gradient):
        return cause_of(Observation.KEYWORD_GRADIENT, block=kind, argument=facts.keyword_gradient[0])
    return None


def _written(case: Case) -> Cause | None:
    for kind, facts in case.calls(lambda f: f.written):
        return cause_of(Observation.SHARED_WRITES, block=kind, argument=facts.written[0])
    return None


def _container(case: Case) -> Cause | None:
    for kind, facts in case.calls(lambda f: f.container_gradient):
        return cause_of(Observation.GRADIENT_CONTAINER, block=kind, argument=facts.container_gradient[0])
    return None


def _nested_output(case: Case) -> Cause | None:
    for kind, _ in case.calls(lambda f: f.nested_output):
        return cause_of(Observation.NESTED_OUTPUT, block=kind)
    return None


def _aside(case: Case) -> Cause | None:
    for name in case.reference.calls:
        if name in case.reference.aside:
            kind = _kind(case.blocks[name])
            return f"A tensor made inside {kind} is used outside without being returned, such as router logits.", ""
    return None


def _not_fed(case: Case) -> Cause | None:
    for name, facts in case.reference.calls.items():
        block = case.blocks[name]
        trained = any(parameter.requires_grad for parameter in block.module.parameters())
        if trained and not (facts.fed or facts.keyword_gradient or facts.container_gradient):
            return f"No input of {_kind(block)} needs gradient, so that reentrant checkpointing cuts it off.", ""
    return None


_REENTRANT: tuple[Callable[[Case], Cause | None], ...] = (
    _returned,
    _keyword,
    _not_fed,
    _written,
    _container,
    _nested_output,
    _aside,
)


def _state(fault: Fault, case: Case) -> Cause:
    if fault.subjects and fault.subjects[0].startswith("input "):
        return (not case.repaired and _past(case)) or ("The recompute writes into the cache again.", "")
    owners = {name.rpartition(".")[0] for name in fault.subjects}
    modules = [case.model.get_submodule(owner) for owner in owners if _has_module(case.model, owner)]
    if any(isinstance(module, nn.modules.batchnorm._NormBase) for module in modules):
        return "The recompute updates the running statistics of batch normalisation a second time.", ""
    if "random" in fault.expected:
        return "The generator's state is not restored for the recompute, so that dropout changes.", ""
    return _UNKNOWN


def _cost(fault: Fault, case: Case) -> Cause:
    nested = next((block for block in case.blocks.values() if block.inside), None)
    if "forward once more" in fault.expected and nested and not case.repaired:
        return _nested(nested, case)
    return _UNKNOWN


def _nested(block: Block, case: Case) -> Cause:
    return cause_of(Observation.NESTED_BLOCKS, block=_kind(block), outer=_kind(case.blocks[block.inside]))


_EXPLAIN: Mapping[str, Callable[[Fault, Case], Cause]] = {
    "run": _gradients,
    "recompute": _recompute,
    "set": _gradients,
    "values": _gradients,
    "state": _state,
    "cost": _cost,
}


def _kind(block: Block) -> str:
    return type(block.module).__name__


def _has_module(model: nn.Module, name: str) -> bool:
    try:
        model.get_submodule(name)
    except AttributeError:
        return False
    return True
