"""Compare the reports of `verify` on the base and on the series: one row for each class and mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import LEVELS, MODES, Mode, ModeReport
from ckpt_surgery.upstream.evidence.results import ModelRow, RowVerdict


def rows_of(family: str, before: Sequence[Report], after: Sequence[Report]) -> tuple[ModelRow, ...]:
    """Return one row for each class, with its variant, and mode, in that order.

    A class that ran on the base and cannot be run on the series fails at the level `run` there, with the reason, so
    that its row is worse. If there is no verdict on the base, or on neither side, the row has a `problem`.
    """
    by_label = [{report.label: report for report in reports} for reports in (before, after)]
    labels = sorted({label for reports in by_label for label in reports})
    return tuple(
        _row(family, label, mode, *(reports.get(label) for reports in by_label)) for label in labels for mode in MODES
    )


def _row(family: str, label: str, mode: Mode, before: Report | None, after: Report | None) -> ModelRow:
    run_before, run_after = _run(before, mode), _run(after, mode)
    failed_before, failed_after = ({fault.level for fault in run.faults} for run in (run_before, run_after))
    # a level that failed on the base and is skipped on the series is not repaired
    failed_after |= {level for level in failed_before if run_after.outcomes.get(level) == "skipped"}
    kept_before, kept_after = (run.cost.kept_bytes if run.cost else 0 for run in (run_before, run_after))
    row = ModelRow(
        family=family,
        model=label,
        mode=mode,
        before=tuple(level for level in LEVELS if level in failed_before),
        after=tuple(level for level in LEVELS if level in failed_after),
        faults_before=tuple(map(str, run_before.faults)),
        faults_after=tuple(map(str, run_after.faults)),
        kept_before=kept_before,
        kept_after=kept_after,
        statistics_only=run_after.statistics_only,
    )
    gap_before, gap_after = _gap(label, before, mode), _gap(label, after, mode)
    built_before, built_after = (side is not None and side.status != "not built" for side in (before, after))
    if gap_after is not None and (gap_before is None or (built_before and not built_after)):
        # nothing that failed before counts as repaired; a step that did not end before is not worse if it cannot start
        levels = row.before if "run" in row.before else ("run",)
        return replace(row, after=levels, faults_after=(gap_after,), kept_after=0, statistics_only=False)
    # a class that claims no support may be measured nevertheless, and a row that is worse must not be hidden
    both_measured = run_before.outcomes and run_after.outcomes
    if (gap_before is None and gap_after is None) or (both_measured and row.verdict is RowVerdict.WORSE):
        return row
    if gap_before is not None and gap_before == gap_after:
        return replace(row, problem=gap_before)
    gaps = [f"on the {tree}: {gap}" for tree, gap in (("base", gap_before), ("series", gap_after)) if gap is not None]
    return replace(row, problem="; ".join(gaps))


def _run(report: Report | None, mode: Mode) -> ModeReport:
    """Return what a report says about a mode; an empty ModeReport if the mode was not examined."""
    runs = report.modes if report else ()
    return next((run for run in runs if run.mode == mode), ModeReport(mode, (), {}))


def _gap(label: str, report: Report | None, mode: Mode) -> str | None:
    """Say why there is no verdict, as a clause; None if there is one."""
    if report is None:
        return f"there is no {label}"
    if not report.supported:
        return f"{report.model} says that it does not support gradient checkpointing"
    if mode not in [run.mode for run in report.modes]:
        return report.problem or f"it was not examined in the mode {mode}"
    run = _run(report, mode)
    return None if run.faults or run.ok else run.refused or "; ".join(skip.reason for skip in run.skips)
