"""The reports of `verify` on the base and on the series, compared: one row for each class and mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ckpt_surgery.measure.kinds import CauseKind, FaultKind
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import LEVELS, MODES, Fault, Mode, ModeReport
from ckpt_surgery.upstream.evidence.results import ModelRow, RowVerdict

_STATISTICS = frozenset({"running_mean", "running_var", "num_batches_tracked"})
"""The buffers of batch normalisation."""


def rows_of(family: str, before: Sequence[Report], after: Sequence[Report]) -> tuple[ModelRow, ...]:
    """One row for each class, with its variant, and mode, in that order.

    A class that ran before and cannot be run after fails at the level `run` after, with the reason, so that its row is
    worse. If there is no verdict before, or on neither side, the row has a `problem`.
    """
    by_label = [{report.label: report for report in reports} for reports in (before, after)]
    labels = sorted({label for reports in by_label for label in reports})
    return tuple(
        _row(family, label, mode, *(reports.get(label) for reports in by_label)) for label in labels for mode in MODES
    )


def reproduced(rows: Sequence[ModelRow]) -> bool:
    """Whether a fault was seen before that is gone after."""
    return any(row.better for row in rows)


def _row(family: str, label: str, mode: Mode, before: Report | None, after: Report | None) -> ModelRow:
    mode_before, mode_after = _mode_report(before, mode), _mode_report(after, mode)
    row = ModelRow(
        family=family,
        model=label,
        mode=mode,
        before=_levels(mode_before),
        after=_levels(mode_after, _levels(mode_before)),
        faults_before=_sentences(mode_before),
        faults_after=_sentences(mode_after),
        kept_before=_kept(mode_before),
        kept_after=_kept(mode_after),
        statistics_only=_statistics_only(mode_after),
    )
    gap_before, gap_after = _gap(label, before, mode), _gap(label, after, mode)
    if gap_after is not None and (gap_before is None or (_was_built(before) and not _was_built(after))):
        # Nothing that failed before counts as repaired; a step that did not end before is not worse for not starting.
        levels = row.before if "run" in row.before else ("run",)
        return replace(row, after=levels, faults_after=(gap_after,), kept_after=0, statistics_only=False)
    # A class that claims no support may be measured all the same, and what is worse there is not to be hidden.
    both_measured = mode_before is not None and mode_after is not None
    if (gap_before is None and gap_after is None) or (both_measured and row.verdict is RowVerdict.WORSE):
        return row
    if gap_before is not None and gap_before == gap_after:
        return replace(row, problem=gap_before)
    gaps = [f"on the {tree}: {gap}" for tree, gap in (("base", gap_before), ("series", gap_after)) if gap is not None]
    return replace(row, problem="; ".join(gaps))


def _mode_report(report: Report | None, mode: Mode) -> ModeReport | None:
    return next((entry for entry in report.modes if entry.mode == mode), None) if report else None


def _was_built(report: Report | None) -> bool:
    """Whether the class was built, even if it says that it does not support checkpointing."""
    return report is not None and report.status != "not built"


def _gap(label: str, report: Report | None, mode: Mode) -> str | None:
    """Say why there is no verdict, as a clause; None if there is one."""
    if report is None:
        return f"there is no {label}"
    if not report.supported:
        return f"{report.model} says that it does not support gradient checkpointing"
    run = _mode_report(report, mode)
    if run is None:
        return report.problem or f"it was not examined in the mode {mode}"
    return None if run.faults or run.ok else run.refused or "; ".join(skip.reason for skip in run.skips)


def _levels(report: ModeReport | None, before: Sequence[str] = ()) -> tuple[str, ...]:
    """The levels that failed, and those that failed before and were skipped now."""
    if report is None:
        return ()
    failed = {fault.level for fault in report.faults}
    skipped = {level for level in LEVELS if level in before and report.outcomes.get(level) == "skipped"}
    return tuple(level for level in LEVELS if level in failed | skipped)


def _statistics_only(report: ModeReport | None) -> bool:
    """Whether gradients were compared and are equal, and running statistics are all that differs."""
    if report is None or not report.faults:
        return False
    equal = report.outcome("set") == report.outcome("values") == "ok"
    return equal and all(map(_is_of_statistics, report.faults))


def _is_of_statistics(fault: Fault) -> bool:
    explained = fault.explanation is not None and fault.explanation.kind is CauseKind.BATCH_NORM_TWICE
    named = {subject.rpartition(".")[2] for subject in fault.subjects}
    return fault.kind is FaultKind.BUFFER_CHANGED and explained and named <= _STATISTICS


def _sentences(report: ModeReport | None) -> tuple[str, ...]:
    return tuple(map(str, report.faults)) if report else ()


def _kept(report: ModeReport | None) -> int:
    return report.cost.kept_bytes if report and report.cost else 0
