"""Reports of two trees compared: what counts as repaired, as worse, and as not measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ckpt_surgery.measure.kinds import CauseKind, FaultKind, SkipKind
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import Cost, Fault, Level, ModeReport, Outcome, Skip
from ckpt_surgery.upstream.evidence.results import ModelRow, RowVerdict
from ckpt_surgery.upstream.evidence.rows import rows_of
from tests.measure.fault_cases import fault, fault_at, why

WHY = why(CauseKind.PLAIN_BLOCK, block="ToyBlock")
PLAIN = fault_at("recompute", "layers.0", explanation=WHY)


def report(*levels: Level, kept: int = 7) -> Report:
    """Make a report on the class Toy, which failed at these levels in one mode."""
    faults = tuple(fault_at(level, "layers.0", explanation=WHY) for level in levels)
    cost = Cost(kept, 9, 5, 1, 1, 1, 1)
    return Report("Toy", modes=(ModeReport("non_reentrant", faults, {"run": "ok"}, cost=cost),))


NOT_RUN = Skip(("run",), SkipKind.ALWAYS_NON_REENTRANT)
UNBUILT = Report("Toy", problem="no tiny Toy can be made: import raised ImportError: no module x")


UNSUPPORTED = Report("Toy", problem="Toy says that it does not support gradient checkpointing", supported=False)


def unclaimed(*levels: Level) -> Report:
    return replace(report(*levels), supported=False)


def row(before: Report | None, after: Report | None) -> ModelRow:
    """Make the row of two runs, whose reports have one mode."""
    sides = [[side] if side else [] for side in (before, after)]
    rows, _ = rows_of("toy", *sides)
    return rows


def test_a_row_has_levels_in_order_sentences_as_reported_and_kept_bytes() -> None:
    result = row(report("cost", "recompute", kept=80), report(kept=20))
    assert (result.family, result.model, result.mode, result.verdict) == ("toy", "Toy", "non_reentrant", "repaired")
    assert (result.before, result.after, result.problem) == (("recompute", "cost"), (), "")
    assert result.faults_before == (str(fault_at("cost", "layers.0", explanation=WHY)), str(PLAIN))
    assert result.faults_after == ()
    assert (result.kept_before, result.kept_after) == (80, 20)


def test_a_level_that_is_skipped_after_the_repair_is_not_repaired() -> None:
    (mode,) = report("values").modes
    after = replace(report(), modes=(replace(mode, outcomes={"recompute": "skipped"}),))
    result = row(report("recompute", "values"), after)
    assert (result.after, result.verdict) == (("recompute", "values"), "as before")


@pytest.mark.parametrize("changes", [{"skips": (NOT_RUN,)}, {"refused": NOT_RUN.reason}], ids=["skipped", "refused"])
def test_a_mode_that_was_not_measured_is_neither_ok_nor_repaired(changes: dict[str, Any]) -> None:
    after = replace(report(), modes=(ModeReport("non_reentrant", (), {}, **changes),))
    for result in (row(report("recompute"), after), row(report(), after)):
        assert (result.verdict, result.after, result.faults_after) == ("worse", ("run",), (NOT_RUN.reason,))
    assert row(after, after).problem == NOT_RUN.reason


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (report("recompute", "cost"), report("state"), "partly repaired"),
        (report("recompute"), report("recompute"), "as before"),
        (report(), report(), "ok before"),
        (report(), report("values"), "worse"),
        (report("recompute"), UNBUILT, "worse"),
        (report(), UNBUILT, "worse"),
        (report("recompute"), None, "worse"),
        (report("recompute"), UNSUPPORTED, "worse"),
        (UNSUPPORTED, UNBUILT, "worse"),
        (unclaimed("recompute"), unclaimed("values"), "worse"),
        (report("run"), UNBUILT, "as before"),
        (UNBUILT, report(), "not measured"),
        (None, report(), "not measured"),
        (UNSUPPORTED, UNSUPPORTED, "not measured"),
        (unclaimed("recompute"), unclaimed(), "not measured"),
    ],
)
def test_only_what_is_measured_on_both_sides_can_be_repaired(
    before: Report | None, after: Report | None, verdict: str
) -> None:
    result = row(before, after)
    assert result.verdict == verdict
    assert result.better == (verdict == RowVerdict.PARTLY_REPAIRED)
    assert bool(result.problem) == (verdict == RowVerdict.NOT_MEASURED)


def test_a_class_that_is_not_built_any_more_says_why() -> None:
    result = row(report("recompute", kept=80), UNBUILT)
    assert (result.after, result.faults_after) == (("run",), (UNBUILT.problem,))
    assert (result.kept_before, result.kept_after) == (80, 0)
    assert row(report(), None).faults_after == ("there is no Toy",)


def test_a_problem_names_its_side_unless_it_is_the_same_on_both() -> None:
    assert row(UNBUILT, UNBUILT).problem == UNBUILT.problem
    assert row(UNBUILT, report()).problem == f"on the base: {UNBUILT.problem}"
    both = f"on the base: {UNBUILT.problem}; on the series: {UNSUPPORTED.problem}"
    assert row(UNBUILT, UNSUPPORTED).problem == both


NORM = why(CauseKind.BATCH_NORM_TWICE)
STATISTICS = fault(
    FaultKind.BUFFER_CHANGED, "layers.0.norm.running_mean", "layers.0.norm.num_batches_tracked", explanation=NORM
)


@pytest.mark.parametrize(
    ("faults", "values", "expected"),
    [
        ([STATISTICS], "ok", True),
        ([STATISTICS], "skipped", False),
        ([STATISTICS, fault_at("values", "layers.0.weight")], "failed", False),
        ([STATISTICS, fault_at("cost", "layers.0")], "ok", False),
        ([fault(FaultKind.BUFFER_CHANGED, "layers.0.running_mean")], "ok", False),
        ([replace(STATISTICS, subjects=(*STATISTICS.subjects, "layers.0.count"))], "ok", False),
        ([fault(FaultKind.CACHE_WRITTEN, "past_key_values", explanation=NORM)], "ok", False),
        ([], "ok", False),
    ],
    ids=[
        "statistics alone",
        "gradients were not compared",
        "gradients differ",
        "no memory is saved",
        "a buffer that is none of batch normalisation",
        "another buffer besides",
        "a cache",
        "nothing",
    ],
)
def test_running_statistics_are_told_from_all_else_that_differs(
    faults: list[Fault], values: Outcome, expected: bool
) -> None:
    modes = (ModeReport("non_reentrant", tuple(faults), {"set": "ok", "values": values}),)
    result = row(report("recompute"), Report("Toy", modes=modes))
    assert result.statistics_only == expected
    assert result.gradients_equal == (expected or not faults)
