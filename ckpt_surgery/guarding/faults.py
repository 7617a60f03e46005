"""The faults that a guard can find: as data, and in words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from ckpt_surgery.text import plural, some


class GuardFaultKind(StrEnum):
    """The kinds of fault in the checkpointing of a run."""

    NOT_RECOMPUTED = "not recomputed"
    RECOMPUTED_AGAIN = "recomputed several times"
    WRONG_GRADIENTS = "wrong gradients"
    OTHER_RECOMPUTE = "recomputed on something else"
    OTHER_BLOCK = "recomputed another block"
    WRITTEN_TWICE = "written twice"
    GROWN_TWICE = "grown twice"
    OVERWRITTEN = "argument overwritten"
    CUT_OFF = "cut off"
    UNTRAINED = "untrained"
    GRADIENTS_APART = "ranks have different gradients"
    WEIGHTS_APART = "ranks have different weights"


class CoverageCause(StrEnum):
    """The known reasons why a block is recomputed not at all, several times, or on other inputs."""

    UNKNOWN = ""
    EVALUATION = "in evaluation mode, it is not checkpointed: call model.train()"
    REPLACED = "its forward was replaced after the model was made, and the layer's own never runs: call wrap_blocks"
    PLAIN = "it is not a checkpointing layer: call wrap_blocks"
    DRAWN_ANEW = (
        "it draws random numbers, and its recompute drew others: put the generators back, as torch's checkpoint does "
        "with preserve_rng_state=True"
    )
    RECAST = (
        "its recompute began with another dtype of autocast than its forward, and so in another precision: enter "
        "autocast in the recompute as it was in the forward"
    )
    THROUGH_HOOKS = (
        "what it keeps goes through saved_tensors_hooks of the script, as offloading has them: see that unpack gives "
        "back what pack was given, with its values, shape and strides"
    )
    IN_CONTAINER = (
        "what it is given with a gradient is inside a list, tuple or dict, or comes by keyword, where reentrant "
        "checkpointing sees none: pass each tensor by position"
    )
    HOOKS_GONE = (
        "hooks that its forward ran were gone as it was recomputed: take them off after the backward, not before it"
    )
    CHOOSES_EXPERTS = (
        "it has a router: where scores are nearly equal, its recompute may choose other experts, so keep what the "
        "router chooses (topk), or its results"
    )
    TWICE = "checkpointing is switched on twice, as by FSDP or Accelerate and by the Trainer: switch one of them off"


@dataclass(frozen=True, slots=True)
class GuardFault:
    """One fault: the blocks or parameters that have it, by name, and how it shows.

    `counts` are the entries of a block in forward and recompute; `error` is the largest relative error of a gradient,
    and `factor`, if it is not 0, how many times too large all wrong gradients are. `ranks` are those that differ from
    most others. `likewise` are further blocks with the same fault.
    """

    kind: GuardFaultKind
    subjects: tuple[str, ...]
    cause: CoverageCause = CoverageCause.UNKNOWN
    counts: tuple[int, int] = (0, 0)
    error: float = 0.0
    factor: int = 0
    steps: int = 0
    ranks: tuple[int, ...] = ()
    likewise: tuple[str, ...] = ()

    @property
    def alike(self) -> tuple[object, ...]:
        """A key shared by faults that differ only in the number of their block."""
        names = self.subjects[: 1 if self.kind is GuardFaultKind.WRONG_GRADIENTS else None]
        return self.kind, self.cause, self.counts, self.ranks, tuple(NUMBER.sub("*", name) for name in names)

    @property
    def rule(self) -> str:
        """The code of the rule that finds the same fault in source; empty if none does."""
        return _RULES.get(self.kind) or _RULES.get(self.cause, "")

    def __str__(self) -> str:
        first, *others = self.subjects
        blocks = f"each of {plural(len(self.subjects), 'block')} ({some(self.subjects)})"
        ranks = ", ".join(map(str, self.ranks))
        said = _SAID[self.kind].format(
            block=blocks if others else f"block {first}",
            first=first,
            others=some(others) or "something that it depends on",
            parameters=some(self.subjects),
            many=plural(len(self.subjects), "parameter"),
            forwards=plural(self.counts[0], "forward"),
            recomputes=plural(self.counts[1], "time"),
            error=self.error,
            steps=plural(self.steps, "step"),
            rank=f"rank {ranks}" if len(self.ranks) == 1 else f"each of ranks {ranks}",
        )
        said = f"{said}: {self.factor} times as large, as if each was added so often" if self.factor else said
        said = f"{said}; {self.cause}" if self.cause else said
        return f"{said}; likewise {some(self.likewise)}" if self.likewise else said

    @classmethod
    def together(cls, faults: Iterable[GuardFault]) -> list[GuardFault]:
        """Merge faults that are alike: the first one names the blocks of the others, and has the largest error."""
        first: dict[tuple[object, ...], GuardFault] = {}
        for fault in faults:
            before = first.setdefault(fault.alike, fault)
            if before is not fault:
                likewise = (*before.likewise, fault.subjects[0])
                first[fault.alike] = replace(before, likewise=likewise, error=max(before.error, fault.error))
        return list(first.values())


NUMBER = re.compile(r"\b\d+\b")
"""The numbers in names, in which the blocks of one stack differ."""
_SAID = {
    GuardFaultKind.NOT_RECOMPUTED: "{block} ran in the forward, and no recompute followed: what it made was kept",
    GuardFaultKind.RECOMPUTED_AGAIN: "{block} was recomputed {recomputes} for {forwards}: each is paid for",
    GuardFaultKind.WRONG_GRADIENTS: (
        "block {first} got other gradients than it has without checkpointing: {others}, off by up to {error:.2g} "
        "of the largest entry"
    ),
    GuardFaultKind.OTHER_RECOMPUTE: (
        "block {first} gave something else in its forward than in its recompute, so that its gradients are wrong: "
        "{others} changed in between; keep it as it was in the forward until the backward has ended"
    ),
    GuardFaultKind.OTHER_BLOCK: (
        "the recomputes of {others} ran block {first} in their place, so that gradients are wrong: what a "
        "checkpointed function looks up, such as the variable of a loop, was another by then; bind it as a default "
        "argument"
    ),
    GuardFaultKind.WRITTEN_TWICE: (
        "block {first} writes {others} in its forward and once more in its recompute: take that out of the block, or "
        "have it checkpointed by wrap_blocks (run --wrap) alone, which puts it back"
    ),
    GuardFaultKind.GROWN_TWICE: (
        "block {first} adds to {others} in its forward and once more in its recompute: take that out of the block"
    ),
    GuardFaultKind.OVERWRITTEN: (
        "block {first} writes into its arguments in place ({others}) under reentrant checkpointing, and whoever reads "
        "that gets no graph: the gradients through it are lost; return it instead, or use use_reentrant=False"
    ),
    GuardFaultKind.CUT_OFF: (
        "none of the inputs of block {first} needs gradient, so that reentrant checkpointing cuts it off and its "
        "parameters get none: let the inputs of the first block need gradient, as enable_input_require_grads() of "
        "transformers does, or use use_reentrant=False"
    ),
    GuardFaultKind.UNTRAINED: (
        "{many} got no gradient in {steps}: {parameters}; freeze what is not to train, or look for where the graph is "
        "cut"
    ),
    GuardFaultKind.GRADIENTS_APART: (
        "{rank} stepped on other gradients than the other ranks: {parameters}; compute the loss through "
        "DistributedDataParallel, not through its module, or call sync_gradients before the step"
    ),
    GuardFaultKind.WEIGHTS_APART: (
        "{rank} trained to other weights than the other ranks: {parameters}; in some step its gradients were not "
        "averaged, or it stepped more or less often"
    ),
}
_RULES: dict[StrEnum, str] = {
    GuardFaultKind.RECOMPUTED_AGAIN: "CKPT106",
    GuardFaultKind.GRADIENTS_APART: "CKPT101",
    GuardFaultKind.OTHER_BLOCK: "CKPT012",
    CoverageCause.IN_CONTAINER: "CKPT007",
    CoverageCause.PLAIN: "CKPT001",
    CoverageCause.REPLACED: "CKPT013",
}
