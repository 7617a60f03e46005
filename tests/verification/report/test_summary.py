"""The figures and phrases that every format shares."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpt_surgery.verification.report.summary import (
    block_rows,
    causes,
    error_text,
    failed_levels,
    measured,
    ordered,
    percent,
    portable,
    saved_share,
)
from ckpt_surgery.verification.results import Cost, Fault
from tests.verification.report import examples


@pytest.mark.parametrize(
    ("kept", "best", "text"),
    [(100, 20, "0 %"), (20, 20, "100 %"), (60, 20, "50 %"), (120, 20, "-25 %"), (5, 100, "-")],
)
def test_the_share_saved_is_of_what_could_be_saved(kept: int, best: int, text: str) -> None:
    assert percent(saved_share(Cost(kept, 100, best, 0, 0, 0, 0))) == text


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


def test_failures_come_first_and_then_the_alphabet() -> None:
    models = [report.model for report in ordered(examples.every_kind())]
    assert models[-3:] == ["LlamaForCausalLM", "FooModel", "TimmBackbone"]
    assert models[:-3] == sorted(models[:-3], key=str.casefold)


def test_a_cause_counts_a_class_once_and_by_its_rule() -> None:
    first, *others = causes([examples.not_recomputed(), examples.drifted(), replace(examples.drifted(), model="B")])
    assert (first.rule, first.labels) == ("CKPT003", ("Gemma3nForCausalLM", "B"))
    assert [(cause.rule, len(cause.labels)) for cause in others] == [("CKPT001", 1)]


def test_a_cause_without_a_rule_is_counted_over_classes_of_blocks() -> None:
    reports = [
        examples.report(model, examples.mode_report("reentrant", Fault("set", "one", "none", cause=cause)))
        for model, cause in {
            "A": "No input of PvtV2EncoderLayer needs gradient.",
            "B": "No input of OtherBlock needs gradient.",
            "C": "A ValueError is no GradientCheckpointingLayer, and BatchNorm1d has FLOPs.",
        }.items()
    ]
    assert [(cause.text, cause.labels) for cause in causes(reports)] == [
        ("No input of a block needs gradient.", ("A", "B")),
        ("A ValueError is no GradientCheckpointingLayer, and BatchNorm1d has FLOPs.", ("C",)),
    ]


def test_levels_that_nothing_decided_are_no_columns() -> None:
    assert measured(examples.every_kind())[1] == ("run", "recompute", "set", "values", "state", "cost")
    fault = Fault("ranks", "equal", "other")
    ranked = examples.report("A", examples.mode_report("reentrant", fault))
    assert measured([ranked])[0] == ("reentrant",)
    assert "ranks" in measured([ranked])[1]
    assert failed_levels(ranked.modes[0]) == ("ranks",)


def test_blocks_alike_share_a_row_where_there_are_many() -> None:
    (row,) = block_rows(examples.healthy())
    assert (row.name, row.blocks) == ("model.layers.0 to 5", 6)
    assert len(block_rows(examples.healthy(), most=6)) == 6


def test_blocks_that_differ_do_not_share_a_row() -> None:
    rows = block_rows(examples.nested())
    assert [(row.name, row.blocks, row.reference, dict(row.recomputed)["reentrant"]) for row in rows] == [
        ("swin.encoder.layers.0", 1, 1, 1),
        ("swin.encoder.layers.0.blocks.0 to 1", 2, 1, 2),
        ("swin.encoder.shared", 1, 3, 3),
    ]
