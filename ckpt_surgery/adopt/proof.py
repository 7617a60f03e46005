"""What `verify` measured of each class before and after the repair, and whether the repair made anything worse.

Plain data: nothing is run here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import LEVELS, Level, Mode, ModeReport, Repair

_MORE = 1.1
"""Times the kept bytes: less is within what another order of operations changes."""


class ClassVerdict(StrEnum):
    """What the measurements say of one class."""

    OK = "ok"
    """Every mode is right, and was before."""
    REPAIRED = "repaired"
    """Every mode is right after the repair, and one was not before."""
    IMPROVED = "improved"
    """Some faults are gone, some remain, and none is new."""
    FAILED = "failed"
    """It fails, and no less after a repair if there was one."""
    WORSE = "worse"
    """Something was right before and is not after."""
    UNSUPPORTED = "claims no support"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class ClassProof:
    """The reports on one class: as it is, and after the repair; `after` is None where there was nothing to repair.

    `uses` are the names of the classes that the measured models of the folder are made of, as far as they are known.
    """

    before: Report
    after: Report | None = None
    uses: frozenset[str] = frozenset()

    @property
    def final(self) -> Report:
        """The report on the code as it should be in the end."""
        return self.after or self.before

    @property
    def worse(self) -> dict[Mode, tuple[Level, ...]]:
        """The modes that the repair made worse, each with the levels concerned."""
        runs = {run.mode: run for run in self.final.modes}
        levels = {run.mode: _worse_levels(run, runs.get(run.mode)) for run in self.before.modes}
        return {mode: found for mode, found in levels.items() if found}

    @property
    def verdict(self) -> ClassVerdict:
        after = self.final
        if self.worse or (after.status == "not built" != self.before.status):
            return ClassVerdict.WORSE
        if after.status == "not built":
            return ClassVerdict.NOT_MEASURED
        if after.status == "unsupported":
            return ClassVerdict.UNSUPPORTED
        if after.ok:
            return ClassVerdict.OK if self.before.ok else ClassVerdict.REPAIRED
        return ClassVerdict.IMPROVED if _failures(after) < _failures(self.before) else ClassVerdict.FAILED

    @property
    def paired(self) -> Report:
        """Both as one report: the levels after the repair stand beside those before."""
        if self.after is None:
            return self.before
        return replace(self.before, repair=Repair(self.after.modes, problem=self.after.problem))


def is_measured(reports: Sequence[Report]) -> bool:
    """Whether there is a verdict on any of the classes."""
    return any(report.status != "not built" for report in reports)


def kept_bytes(report: Report, mode: Mode) -> tuple[int, int] | None:
    """The bytes that autograd keeps with and without checkpointing; None where they were not measured."""
    cost = next((run.cost for run in report.modes if run.mode == mode), None)
    return (cost.kept_bytes, cost.reference_kept_bytes) if cost else None


def _worse_levels(before: ModeReport, after: ModeReport | None) -> tuple[Level, ...]:
    """The levels that were ok and are not any more, or fail for more blocks or parameters than they did.

    Where the step did not end before, nothing else is known, and a level that fails after is none that was ok. In a
    mode that had no fault, more memory is worse as well: a loop that checkpoints functions may have no blocks by which
    the level `cost` could judge it.
    """
    if after is None or (before.outcome("run") == "ok" != after.outcome("run")):
        return ("run",)
    worse = [level for level in LEVELS if _is_level_worse(before, after, level)]
    if before.ok and before.cost and after.cost and after.cost.kept_bytes > _MORE * before.cost.kept_bytes:
        worse += ["cost"] * ("cost" not in worse)
    return tuple(worse)


def _is_level_worse(before: ModeReport, after: ModeReport, level: Level) -> bool:
    was, is_ = before.outcome(level), after.outcome(level)
    if was == "ok":
        return is_ != "ok"
    if was == "skipped":
        return is_ == "failed" and before.ok
    return is_ == "failed" and _extent(after, level) > _extent(before, level)


def _extent(run: ModeReport, level: Level) -> int:
    """How much of the model the faults of a level are about: blocks and parameters, or kept bytes."""
    if level == "cost" and run.cost is not None:
        return run.cost.kept_bytes
    return len({name for fault in run.faults if fault.level == level for name in fault.subjects})


def _failures(report: Report) -> set[tuple[Mode, Level]]:
    """The levels that failed, by mode. A step that does not end fails them all."""
    return {
        (run.mode, level)
        for run in report.modes
        for level in LEVELS
        if "failed" in (run.outcome(level), run.outcome("run"))
    }
