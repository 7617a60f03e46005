"""The figures and phrases that every format shares."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpt_surgery.measure.kinds import CauseKind, FaultKind
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import Cost
from ckpt_surgery.report.summary import (
    BlockRow,
    Overview,
    error_text,
    portable,
)
from ckpt_surgery.text import percent
from tests.measure.fault_cases import fault, why
from tests.report import examples


@pytest.mark.parametrize(
    ("kept", "best", "text"),
    [(100, 20, "0 %"), (20, 20, "100 %"), (60, 20, "50 %"), (120, 20, "-25 %"), (5, 100, "-")],
)
def test_the_share_saved_is_of_what_could_be_saved(kept: int, best: int, text: str) -> None:
    assert percent(Cost(kept, 100, best, 0, 0, 0, 0).saved_share) == text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (None, "in one run only"),
        (0.0, "equal"),
        (3.2e-7, "3.2e-07"),
        (float("nan"), "not finite"),
        (float("inf"), "not finite"),
    ],
)
def test_an_error_reads_as_what_it_means(error: float | None, text: str) -> None:
    assert error_text(error) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("in /usr/lib/python3/a.py, line 3", "in a.py, line 3"),
        (r"in C:\Users\me\a.py", "in a.py"),
        ("<Foo object at 0x7f00aa11>", "<Foo object at 0x...>"),
        ("both and/or neither, 3 / 4, </style>", "both and/or neither, 3 / 4, </style>"),
        ("see https://example.org/a/b", "see https://example.org/a/b"),
        ("org/name/file is kept", "org/name/file is kept"),
    ],
)
def test_what_differs_between_machines_goes(text: str, expected: str) -> None:
    assert portable(text) == expected


def test_a_cause_counts_a_class_once_and_by_its_rule() -> None:
    reports = [examples.not_recomputed(), examples.drifted(), replace(examples.drifted(), model="B")]
    first, *others = Overview(reports).causes
    assert (first.rule, first.labels) == ("CKPT003", ("Gemma3nForCausalLM", "B"))
    assert [(cause.rule, len(cause.labels)) for cause in others] == [("CKPT001", 1)]


def test_a_cause_without_a_rule_is_counted_over_classes_of_blocks() -> None:
    reports = [
        examples.report(model, examples.mode_report("reentrant", fault(FaultKind.GRADIENT_LOST, explanation=cause)))
        for model, cause in {
            "A": why(CauseKind.NO_INPUT_GRADIENT, block="PvtV2EncoderLayer"),
            "B": why(CauseKind.NO_INPUT_GRADIENT, block="OtherBlock"),
            "C": why(CauseKind.EVALUATION_MODE, module="Layers.0"),
        }.items()
    ]
    assert [(cause.text, cause.labels) for cause in Overview(reports).causes] == [
        ("No input of a block needs gradient, so that reentrant checkpointing cuts it off.", ("A", "B")),
        ("Layers.0 is in evaluation mode, in which nothing is checkpointed.", ("C",)),
    ]


def test_neighbours_share_a_row_where_they_are_alike() -> None:
    (row,) = BlockRow.of(examples.healthy())
    assert (row.name, row.blocks) == ("model.layers.0 to 5", 6)
    assert len(BlockRow.of(examples.healthy(), most=6)) == 6
    rows = BlockRow.of(examples.nested())
    assert [(row.name, row.blocks, row.reference, dict(row.recomputed)["reentrant"]) for row in rows] == [
        ("swin.encoder.layers.0", 1, 1, 1),
        ("swin.encoder.layers.0.blocks.0 to 1", 2, 1, 2),
        ("swin.encoder.shared", 1, 3, 3),
    ]


def by_model(reports: list[Report]) -> dict[str, Report]:
    return {report.model: report for report in reports}


def test_a_mode_that_was_not_run_decides_nothing() -> None:
    assert (examples.wrapped().status, examples.nothing_measured().status) == ("ok", "skipped")
    assert not examples.nothing_measured().ok
    broken = examples.wrapped(examples.not_recomputed().modes[0])
    assert (broken.status, broken.stays_broken) == ("failed", True)
    assert not examples.nothing_measured().stays_broken
    assert Overview([examples.nothing_measured()]).with_skips == [examples.nothing_measured()]
    refused = examples.report("A", examples.mode_report("non_reentrant"), examples.refused())
    assert (refused.status, refused.faults, refused.stays_broken) == ("failed", (), True)


def test_what_came_of_surgeries_is_counted_and_told_apart() -> None:
    reports = examples.with_repairs()
    assert Overview(reports).repair_counts == {"ok": 3, "refused": 2, "failed": 2, "not repaired": 1}
    assert Overview(examples.every_kind()).repair_counts == {}
    broken = {"StubbornModel", "SpoiltModel", "PvtV2ForImageClassification", "Gemma3nForCausalLM"}
    assert {report.model for report in reports if report.stays_broken} == broken
    assert examples.not_recomputed().stays_broken
    assert not examples.healthy().stays_broken
    assert [report.model for report in Overview(reports).broken_after] == ["SpoiltModel"]
    telling = {report.model for report in reports if report.worth_telling}
    assert telling == broken | {"GPTBigCodeForCausalLM"}
    verdicts = {"GPTBigCodeForCausalLM": "ok", "Gemma3nForCausalLM": "refused", "StubbornModel": "values"}
    verdicts |= {"FooModel": "refused", "PvtV2ForImageClassification": "not repaired"}
    assert {model: by_model(reports)[model].after for model in verdicts} == verdicts
    assert examples.healthy().after == ""
