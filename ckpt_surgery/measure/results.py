"""The results of one mode of one model as plain data: faults, outcomes by level, counts and costs.

Nothing here measures, judges or needs torch. `measure.report` puts the modes of a model together.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ckpt_surgery.measure import wording
from ckpt_surgery.measure.kinds import PARTIAL_SKIPS, CauseKind, FaultKind, SkipKind
from ckpt_surgery.measure.kinds import Level as Level
from ckpt_surgery.runtime.selective.kept_summary import KeptSummary
from ckpt_surgery.text import listed, some

Mode = Literal["non_reentrant", "reentrant"]
Outcome = Literal["ok", "failed", "skipped"]
Cell = Outcome | Literal["refused"]
"""The outcome of one mode, or of one level in it, as every format shows it."""
RepairStatus = Literal["ok", "refused", "failed", "not repaired"]

MODES: tuple[Mode, ...] = get_args(Mode)
SURGERY_MODE: Mode = "non_reentrant"
"""The mode in which `wrap_blocks` checkpoints, whichever is asked for."""
LEVELS: tuple[Level, ...] = get_args(Level)
DEEP_LEVELS: tuple[Level, ...] = ("loop", "precision")
"""The levels that take more steps than all others together."""
LONE_LEVELS: tuple[Level, ...] = tuple(level for level in LEVELS if level != "ranks")
"""The levels of a model in one process."""
QUICK_LEVELS: tuple[Level, ...] = tuple(level for level in LONE_LEVELS if level not in DEEP_LEVELS)
"""The levels of a survey of many models, by default."""
LEVEL_TITLES: Mapping[Level, str] = {
    "run": "the step ends",
    "recompute": "every block is recomputed once",
    "set": "no gradient is lost",
    "values": "gradients are equal",
    "state": "a recompute changes no buffer, cache or randomness",
    "cost": "memory is saved at the expected price",
    "loop": "a training loop computes the same",
    "precision": "half precision and autocast compute the same",
    "ranks": "ranks agree",
}

_STATISTICS = frozenset({"running_mean", "running_var", "num_batches_tracked"})
"""The buffers of batch normalisation."""

Detail = int | float | str | tuple[int, ...]
"""A number, a text that others wrote (an error, a name), or ranks."""


@dataclass(frozen=True, slots=True)
class FaultCause:
    """The cause of a fault: its kind, and the names in its sentence (see `wording`)."""

    kind: CauseKind
    names: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def rule(self) -> str:
        """The code of the rule that finds the cause in source, such as CKPT003; empty if none does."""
        return wording.RULES.get(self.kind, "")

    def __str__(self) -> str:
        return wording.cause_text(self.kind, self.names)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of checkpointing.

    `subjects` are the full names of the blocks, parameters or buffers concerned, in the model's order; empty
    if it concerns the step as a whole. `details` are the figures and names that belong to the kind.
    `explanation` is None if the cause is not known. `underlying` is the fault that this one reports: of another
    rank, or between two runs without checkpointing.

    `expected`, `seen` and `cause` put it into words; decide nothing by these.
    """

    kind: FaultKind
    subjects: tuple[str, ...] = ()
    details: Mapping[str, Detail] = field(default_factory=dict, hash=False)
    explanation: FaultCause | None = None
    underlying: Fault | None = None

    @property
    def level(self) -> Level:
        """The level at which the fault shows."""
        return self.kind.level

    @property
    def expected(self) -> str:
        """The expected behaviour, as a short clause."""
        return self._text().expected

    @property
    def seen(self) -> str:
        """The behaviour that was seen instead, as a short clause."""
        return self._text().seen

    @property
    def cause(self) -> str:
        """The cause as one sentence; empty if it is not known."""
        return "" if self.explanation is None else str(self.explanation)

    @property
    def general_cause(self) -> str:
        """The cause without the classes of this model's blocks; empty if it is not known."""
        cause = self.explanation
        return "" if cause is None else wording.cause_text(cause.kind, cause.names, general=True)

    @property
    def rule(self) -> str:
        """The code of the rule that finds the cause in source, such as CKPT003; empty if none does."""
        return "" if self.explanation is None else self.explanation.rule

    def __str__(self) -> str:
        where = some(self.subjects)
        text = f"{where}: " if where else ""
        text += f"expected {self.expected}, saw {self.seen}."
        return text + (f" {self.cause}" if self.cause else "") + (f" [{self.rule}]" if self.rule else "")

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data, the words included; `from_dict` reads it back."""
        cause = self.explanation
        return {
            "level": self.level,
            "kind": str(self.kind),
            "expected": self.expected,
            "seen": self.seen,
            "subjects": list(self.subjects),
            "details": dict(self.details),
            "underlying": None if self.underlying is None else self.underlying.to_dict(),
            "cause": self.cause,
            "cause_kind": None if cause is None else str(cause.kind),
            "cause_names": {} if cause is None else dict(cause.names),
            "rule": self.rule,
        }

    def _text(self) -> wording.FaultText:
        return wording.fault_text(self.kind, {**self.details, "underlying": self.underlying})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Fault:
        """Read back `to_dict`. Raises KeyError, TypeError or ValueError for any other data."""
        kind, below = data["cause_kind"], data["underlying"]
        details = {  # JSON has neither NaN nor tuples
            name: math.nan if value is None else tuple(value) if isinstance(value, list) else value
            for name, value in data["details"].items()
        }
        return cls(
            FaultKind(data["kind"]),
            tuple(data["subjects"]),
            details,
            None if kind is None else FaultCause(CauseKind(kind), dict(data["cause_names"])),
            None if below is None else cls.from_dict(below),
        )


@dataclass(frozen=True, slots=True)
class Skip:
    """The reason why some requested levels were not judged though no step failed. `details` are as in `Fault`.

    A mode that was not run at all has one skip, of the level run.
    """

    levels: tuple[Level, ...]
    kind: SkipKind
    details: Mapping[str, Detail] = field(default_factory=dict, hash=False)

    @property
    def reason(self) -> str:
        """The reason as a clause. Decide nothing by it."""
        return wording.skip_text(self.kind, self.details)

    def __str__(self) -> str:
        noun, verb = ("level", "was") if len(self.levels) == 1 else ("levels", "were")
        part = "a part of " if self.kind in PARTIAL_SKIPS else ""
        return f"{part}{noun} {listed(self.levels)} {verb} skipped: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data, the words included; `from_dict` reads it back."""
        values = {"levels": list(self.levels), "kind": str(self.kind), "details": dict(self.details)}
        return {**values, "reason": self.reason}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Skip:
        """Read back `to_dict`. Raises KeyError or ValueError for any other data."""
        return cls(tuple(data["levels"]), SkipKind(data["kind"]), dict(data["details"]))


@dataclass(frozen=True, slots=True)
class LevelVerdict:
    """The faults of one level. Not `measured` if nothing can be compared; `skips` say why, unless that is reported."""

    faults: tuple[Fault, ...] = ()
    skips: tuple[Skip, ...] = ()
    measured: bool = True


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes that autograd saved from forward to backward, and FLOPs of forward and backward.

    `best` is what the same blocks would cost if each were checkpointed once and kept only its inputs and outputs, and
    what the option `save` keeps.
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
        """The share of the possible memory saving that was reached; None if nothing can be saved.

        At most 1: a model that passes less to its blocks while it checkpoints may keep less than the best.
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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any] | None) -> Timeline | None:
        """Read back a timeline from JSON data, or None."""
        return None if data is None else cls(tuple((at, held) for at, held in data["points"]), data["backward"])


@dataclass(frozen=True, slots=True)
class BlockCount:
    """The entries of one block: without checkpointing, and in this mode's forward and backward.

    `kind` is "layer" for a `GradientCheckpointingLayer` and "plain" for a module that should be one.
    """

    name: str
    kind: str
    reference: int
    forward: int
    backward: int


@dataclass(frozen=True, slots=True)
class ModeReport:
    """One mode of checkpointing compared with the run without. `errors` are relative errors, by parameter name.

    `skips` say which levels were not judged, and why. `refused` is the sentence in which a surgery refuses a call
    rather than get it wrong: nothing was measured then, and it is not a fault. `kept_results` are those of the option
    `save`, if the model had a surgery. `seconds` is wall-clock time.
    """

    mode: Mode
    faults: tuple[Fault, ...]
    outcomes: Mapping[Level, Outcome]
    skips: tuple[Skip, ...] = ()
    blocks: tuple[BlockCount, ...] = ()
    errors: Mapping[str, float] = field(default_factory=dict)
    cost: Cost | None = None
    kept_results: tuple[KeptSummary, ...] = ()
    timeline: Timeline | None = None
    seconds: float = 0.0
    refused: str = ""

    @classmethod
    def skipped(cls, mode: Mode, kind: SkipKind) -> ModeReport:
        """Return the report of a mode in which nothing was measured, for this reason."""
        return cls(mode, (), dict.fromkeys(LEVELS, "skipped"), skips=(Skip(("run",), kind),))

    @property
    def status(self) -> Cell:
        """The outcome of the mode: "skipped" if nothing but the run was judged although more was asked for."""
        if self.faults:
            return "failed"
        if self.refused:
            return "refused"
        judged = {level for level, outcome in self.outcomes.items() if outcome == "ok"}
        return "ok" if judged - {"run"} or (judged and not self.skips) else "skipped"

    @property
    def ok(self) -> bool:
        """Whether the mode was measured and has nothing wrong."""
        return self.status == "ok"

    @property
    def wrong(self) -> bool:
        """Whether the mode has a fault, or is refused."""
        return self.status in ("failed", "refused")

    @property
    def statistics_only(self) -> bool:
        """Whether gradients were compared and are equal, and only running statistics differ."""
        of_statistics = [
            fault.kind is FaultKind.BUFFER_CHANGED
            and fault.explanation is not None
            and fault.explanation.kind is CauseKind.BATCH_NORM_TWICE
            and {subject.rpartition(".")[2] for subject in fault.subjects} <= _STATISTICS
            for fault in self.faults
        ]
        equal = self.outcome("set") == self.outcome("values") == "ok"
        return equal and bool(of_statistics) and all(of_statistics)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data; `from_dict` reads it back."""
        faults, skips = ([item.to_dict() for item in items] for items in (self.faults, self.skips))
        return {**dataclasses.asdict(self), "faults": faults, "skips": skips}

    def outcome(self, level: Level) -> Outcome:
        """Return the outcome of one level: "failed" if it has a fault, "skipped" if nothing is known."""
        return "failed" if any(fault.level == level for fault in self.faults) else self.outcomes.get(level, "skipped")

    def cell(self, level: Level) -> Cell:
        """Return what a table shows for one level: its outcome, or "refused" for the run of a refused mode."""
        return "refused" if self.refused and level == "run" else self.outcome(level)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModeReport:
        """Read back `to_dict`. Raises KeyError, TypeError or ValueError for any other data."""
        kept = ({**kept, "operators": tuple(kept["operators"])} for kept in data["kept_results"])
        return cls(
            **{
                **data,
                "faults": tuple(map(Fault.from_dict, data["faults"])),
                "skips": tuple(map(Skip.from_dict, data["skips"])),
                "blocks": tuple(BlockCount(**block) for block in data["blocks"]),
                "errors": {name: math.nan if error is None else error for name, error in data["errors"].items()},
                "cost": None if data["cost"] is None else Cost(**data["cost"]),
                "kept_results": tuple(KeptSummary(**each) for each in kept),
                "timeline": Timeline.from_dict(data["timeline"]),
            }
        )

    @property
    def verdict(self) -> str:
        """The outcome in a few words: ok, refused, skipped, or the levels that failed."""
        return ", ".join(self.failed_levels) or self.status

    @property
    def failed_levels(self) -> tuple[Level, ...]:
        """The levels that failed, in their order."""
        return tuple(level for level in LEVELS if self.outcome(level) == "failed")

    @property
    def gradient_errors(self) -> dict[str, float | None]:
        """The relative error of every gradient; None where only one of the two runs has the gradient.

        0 means no difference above the noise floor of `compare`, not equality bit for bit.
        """
        alone = {name: None for fault in self.faults if fault.level == "set" for name in fault.subjects}
        return {**self.errors, **alone}

    @classmethod
    def broken(cls, mode: Mode, fault: Fault, levels: str | Sequence[Level]) -> ModeReport:
        """Report a mode whose step did not end, so that the fault is all that is known."""
        chosen = LEVELS if levels == "all" else levels
        outcomes: dict[Level, Any] = {"run": "failed"}
        outcomes |= {level: "skipped" for level in LEVELS if level in chosen and level != "run"}
        return cls(mode, (fault,), outcomes)


@dataclass(frozen=True, slots=True)
class Repair:
    """A model's runs after a repair, compared with the same run without checkpointing.

    After `wrap_blocks` that is one mode, `SURGERY_MODE`; `surgery` is the table that it prints. `problem` says why
    nothing was run or compared: with `refused`, it is the sentence in which `wrap_blocks` refuses the model.
    """

    modes: tuple[ModeReport, ...] = ()
    surgery: str = ""
    problem: str = ""
    refused: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data; `from_dict` reads it back."""
        return {**dataclasses.asdict(self), "modes": [mode.to_dict() for mode in self.modes], "status": self.status}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any] | None) -> Repair | None:
        """Read back `to_dict`, or None. Raises KeyError, TypeError or ValueError for any other data."""
        if data is None:
            return None
        modes = tuple(map(ModeReport.from_dict, data["modes"]))
        return cls(modes, data["surgery"], data["problem"], data["refused"])

    @property
    def refusals(self) -> tuple[str, ...]:
        """The sentences in which `wrap_blocks` refuses the model, or a surgery one of its calls."""
        calls = (mode.refused for mode in self.modes if mode.refused)
        return ((self.problem,) if self.refused else ()) + tuple(calls)

    @property
    def status(self) -> RepairStatus:
        """The outcome of the repair."""
        if any(mode.faults for mode in self.modes):
            return "failed"
        if self.refusals:
            return "refused"
        return "ok" if not self.problem and any(mode.ok for mode in self.modes) else "not repaired"


def finite(value: Any) -> Any:
    """Replace NaN and infinity in JSON data by None, since JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, (list, tuple)) else value
