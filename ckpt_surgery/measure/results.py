"""What came of one mode of one model, as plain data: faults, outcomes by level, counts and costs.

Nothing here measures, judges or needs torch. `measure.report` puts the modes of a model together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ckpt_surgery.text import some

Mode = Literal["non_reentrant", "reentrant"]
Level = Literal["run", "recompute", "set", "values", "state", "cost", "ranks"]
Outcome = Literal["ok", "failed", "skipped"]
Cell = Outcome | Literal["refused"]
"""What came of one level in one mode, as every format shows it."""
RepairStatus = Literal["ok", "refused", "failed", "not repaired"]

MODES: tuple[Mode, ...] = get_args(Mode)
LEVELS: tuple[Level, ...] = get_args(Level)
LEVEL_TITLES: Mapping[Level, str] = {
    "run": "the step ends",
    "recompute": "every block is recomputed once",
    "set": "no gradient is lost",
    "values": "gradients are equal",
    "state": "buffers, cache and randomness are as without checkpointing",
    "cost": "memory is saved at the expected price",
    "ranks": "ranks agree",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that checkpointing does wrong.

    `subjects` are the full names of the blocks, parameters or buffers concerned, in the model's order; empty
    where it concerns the step as a whole. `expected` and `seen` are short clauses. `cause` is one sentence and
    `rule` a code such as CKPT003; both are empty where the cause is not known.
    """

    level: Level
    expected: str
    seen: str
    subjects: tuple[str, ...] = ()
    cause: str = ""
    rule: str = ""

    def __str__(self) -> str:
        where = some(self.subjects)
        text = f"{where}: " if where else ""
        text += f"expected {self.expected}, saw {self.seen}."
        return text + (f" {self.cause}" if self.cause else "") + (f" [{self.rule}]" if self.rule else "")


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes that autograd kept from forward to backward, and FLOPs of forward and backward.

    `best` is what the same stack would cost if every block were checkpointed once and kept nothing but what
    goes in and comes out of it.
    """

    kept_bytes: int
    reference_kept_bytes: int
    best_kept_bytes: int
    backward_flops: int
    reference_backward_flops: int
    best_backward_flops: int
    forward_flops: int

    @property
    def saved_share(self) -> float | None:
        """How much of the memory that checkpointing could save it does save; None where there is nothing to save.

        At most 1: a model that hands its blocks less while it checkpoints keeps less than the best of the usual call.
        """
        possible = self.reference_kept_bytes - self.best_kept_bytes
        return min(1.0, (self.reference_kept_bytes - self.kept_bytes) / possible) if possible > 0 else None


@dataclass(frozen=True, slots=True)
class Timeline:
    """Bytes of activations alive over one step: `points` are pairs of operator count and bytes, at most 200.

    `backward` is the operator count at which the backward began.
    """

    points: tuple[tuple[int, int], ...]
    backward: int


@dataclass(frozen=True, slots=True)
class BlockCount:
    """How often one block was entered: without checkpointing, and in this mode's forward and backward.

    `kind` is "layer" for a `GradientCheckpointingLayer` and "plain" for a module that should be one.
    """

    name: str
    kind: str
    reference: int
    forward: int
    backward: int


@dataclass(frozen=True, slots=True)
class ModeReport:
    """One mode of checkpointing next to the run without. `errors` are relative errors, by parameter name.

    `notes` tell what differs without being a fault. `refused` is the sentence with which a surgery refuses a call
    that reentrant checkpointing would get wrong: nothing was measured then, and it is no fault.
    """

    mode: Mode
    faults: tuple[Fault, ...]
    outcomes: Mapping[Level, Outcome]
    notes: tuple[str, ...] = ()
    blocks: tuple[BlockCount, ...] = ()
    errors: Mapping[str, float] = field(default_factory=dict)
    cost: Cost | None = None
    timeline: Timeline | None = None
    seconds: float = 0.0
    refused: str = ""

    @property
    def ok(self) -> bool:
        return not self.faults and not self.refused

    def outcome(self, level: Level) -> Outcome:
        """What came of one level: failed wherever it has a fault, skipped where nothing is known."""
        return "failed" if any(fault.level == level for fault in self.faults) else self.outcomes.get(level, "skipped")

    def cell(self, level: Level) -> Cell:
        """What to show of one level: of a mode that was refused, that its step was."""
        return "refused" if self.refused and level == "run" else self.outcome(level)


@dataclass(frozen=True, slots=True)
class Repair:
    """What `wrap_blocks` made of a model: the same modes next to the same run without checkpointing.

    `surgery` is the table that the surgery prints. `problem` says why there is none, or nothing to compare with.
    """

    modes: tuple[ModeReport, ...] = ()
    surgery: str = ""
    problem: str = ""

    @property
    def status(self) -> RepairStatus:
        if self.problem or not self.modes:
            return "not repaired"
        if any(mode.faults for mode in self.modes):
            return "failed"
        return "refused" if any(mode.refused for mode in self.modes) else "ok"


def finite(value: Any) -> Any:
    """JSON knows no NaN: it becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, (list, tuple)) else value
