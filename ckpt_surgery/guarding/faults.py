"""The faults that a guard can find, as data, and the words for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ckpt_surgery.text import plural, some


class GuardFaultKind(StrEnum):
    """The kinds of fault in the checkpointing of a run."""

    NOT_RECOMPUTED = "not recomputed"
    RECOMPUTED_AGAIN = "recomputed several times"
    WRONG_GRADIENTS = "wrong gradients"
    UNTRAINED = "untrained"
    GRADIENTS_APART = "ranks have different gradients"
    WEIGHTS_APART = "ranks have different weights"


class CoverageCause(StrEnum):
    """The reasons that a block shows for being recomputed not at all, or several times."""

    UNKNOWN = ""
    EVALUATION = "it is in evaluation mode while gradients are on: call train() on it"
    REPLACED = (
        "its forward was replaced after the model was made, so that the layer's own never runs: call wrap_blocks"
    )
    PLAIN = "it is no checkpointing layer: call wrap_blocks"
    TWICE = (
        "checkpointing is switched on twice, such as by FSDP or Accelerate and by the Trainer: switch one of them off"
    )


@dataclass(frozen=True, slots=True)
class GuardFault:
    """One fault: the blocks or parameters that have it, by name, and how it shows.

    `counts` are the entries of a block in forward and recompute; `error` is the largest relative error of a gradient.
    `ranks` are those that differ from most others.
    """

    kind: GuardFaultKind
    subjects: tuple[str, ...]
    cause: CoverageCause = CoverageCause.UNKNOWN
    counts: tuple[int, int] = (0, 0)
    error: float = 0.0
    steps: int = 0
    ranks: tuple[int, ...] = ()

    @property
    def rule(self) -> str:
        """The code of the rule that finds the same in source; empty where none does."""
        return _RULES.get(self.kind) or _RULES_OF_CAUSES.get(self.cause, "")

    def __str__(self) -> str:
        because = f"; {self.cause}" if self.cause else ""
        return f"{_SAID[self.kind](self)}{because}"


def _not_recomputed(fault: GuardFault) -> str:
    return f"{_blocks(fault.subjects)} ran in the forward, and no recompute followed: what it made was kept"


def _again(fault: GuardFault) -> str:
    forward, recomputed = fault.counts
    times = f"{plural(recomputed, 'time')} for {plural(forward, 'forward')}"
    return f"{_blocks(fault.subjects)} was recomputed {times}: each is paid for"


def _wrong(fault: GuardFault) -> str:
    return (
        f"{_blocks(fault.subjects[:1])} got other gradients than it has without checkpointing: "
        f"{some(fault.subjects[1:])}, off by up to {fault.error:.2g} of the largest entry"
    )


def _untrained(fault: GuardFault) -> str:
    return (
        f"{plural(len(fault.subjects), 'parameter')} got no gradient in {plural(fault.steps, 'step')}: "
        f"{some(fault.subjects)}; freeze what is not to train, or look for where the graph is cut"
    )


def _gradients_apart(fault: GuardFault) -> str:
    return (
        f"{_ranks(fault)} stepped on other gradients than the other ranks: {some(fault.subjects)}; compute the loss "
        "through DistributedDataParallel, not through its module, or call sync_gradients before the step"
    )


def _weights_apart(fault: GuardFault) -> str:
    return (
        f"{_ranks(fault)} trained to other weights than the other ranks: {some(fault.subjects)}; in some step its "
        "gradients were not averaged, or it stepped more or less often"
    )


def _ranks(fault: GuardFault) -> str:
    names = ", ".join(map(str, fault.ranks))
    return f"rank {names}" if len(fault.ranks) == 1 else f"each of ranks {names}"


def _blocks(names: Sequence[str]) -> str:
    return f"block {names[0]}" if len(names) == 1 else f"each of {plural(len(names), 'block')} ({some(names)})"


_SAID = {
    GuardFaultKind.NOT_RECOMPUTED: _not_recomputed,
    GuardFaultKind.RECOMPUTED_AGAIN: _again,
    GuardFaultKind.WRONG_GRADIENTS: _wrong,
    GuardFaultKind.UNTRAINED: _untrained,
    GuardFaultKind.GRADIENTS_APART: _gradients_apart,
    GuardFaultKind.WEIGHTS_APART: _weights_apart,
}

_RULES = {GuardFaultKind.RECOMPUTED_AGAIN: "CKPT106", GuardFaultKind.GRADIENTS_APART: "CKPT101"}
_RULES_OF_CAUSES = {CoverageCause.PLAIN: "CKPT001", CoverageCause.REPLACED: "CKPT013"}
