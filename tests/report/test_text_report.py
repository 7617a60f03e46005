"""The lines for people: one model in full, and the table of many."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpt_surgery.measure.report import Report
from ckpt_surgery.report.text import survey_lines
from tests.report import examples


def text(report: Report) -> str:
    """The lines as one, so that where they break does not matter."""
    return " ".join(" ".join(report.lines()).split())


ALL = examples.every_kind() + examples.with_repairs()


@pytest.mark.parametrize("report", ALL, ids=lambda report: report.model)
def test_no_line_is_longer_than_a_hundred_columns(report: Report) -> None:
    assert max(map(len, report.lines())) <= 100
    assert "\n".join(report.lines()) == str(report)


@pytest.mark.parametrize("report", ALL, ids=lambda report: report.model)
def test_a_terminal_without_unicode_can_show_it(report: Report) -> None:
    assert "\n".join([*report.lines(), *survey_lines([report], width=80, show_unbuilt=True)]).isascii()


def test_a_healthy_model_has_its_facts_every_level_and_its_cost() -> None:
    lines = examples.healthy().lines()
    assert lines[0] == "LlamaForCausalLM (llama): ok"
    assert lines[1] == "  float32, 1,234,567 parameters, torch 2.13.0, transformers 5.23.0"
    assert "  ok             ok         values     gradients are equal" in lines
    assert "  skipped        skipped    ranks      ranks agree" in lines
    assert "  reentrant      410 KiB  2.1 MiB  380 KiB  98 %   1.33x           1.33x" in lines
    assert "FAILED" not in "".join(lines)


def test_a_failure_names_level_block_expectation_sight_cause_and_rule() -> None:
    said = text(examples.not_recomputed())
    assert said.startswith("GPTBigCodeForCausalLM (gpt_bigcode): FAILED ")
    assert (
        "- non_reentrant and reentrant, recompute: model.layers.0, model.layers.1, model.layers.2 and 3 more: "
        "expected one recompute in the backward, saw none. "
        "GPTBigCodeBlock is no GradientCheckpointingLayer, so that nothing checkpoints it. [CKPT001]"
    ) in said
    assert " 0 % " in said


def test_a_level_fails_in_its_own_mode_only() -> None:
    rows = [line.split()[:3] for line in examples.lost().lines()]
    assert ["ok", "FAILED", "set"] in rows
    assert ["ok", "ok", "values"] in rows


def test_a_fault_shows_even_where_the_outcomes_say_nothing_of_its_level() -> None:
    mode = replace(examples.lost().modes[1], outcomes={})
    assert ["FAILED", "set"] in [line.split()[:2] for line in replace(examples.lost(), modes=(mode,)).lines()]


def test_without_a_verdict_the_reason_is_given() -> None:
    assert text(examples.unsupported()).startswith("FooModel (foomodel): unsupported")
    assert "FooModel has supports_gradient_checkpointing = False." in text(examples.unsupported())
    assert "ImportError: timm is needed" in text(examples.not_built())


def test_notes_and_great_numbers_are_shown() -> None:
    assert "- reentrant: The loss differs by 1e-9." in text(examples.healthy())
    assert "10,000,000,000,000 parameters" in text(examples.huge())
    assert "909 TiB" in text(examples.huge())


def test_the_table_of_many_has_what_failed_why_and_how_many() -> None:
    lines = survey_lines(examples.every_kind(), width=80, seconds=432.1)
    assert lines[0] == "Failed: 7 classes"
    rows = [line.split() for line in lines]
    assert ["GPTBigCodeForCausalLM", "recompute,", "cost", "recompute", "CKPT001"] in rows
    assert ["HugeModel", "values", "-", "-"] in rows
    assert ["PvtV2ForImageClassification", "ok", "set", "-"] in rows
    assert any(line.startswith("      2  CKPT003 A tensor that carries gradient") for line in lines)
    assert any('cause not known: fails "gradients are equal"' in line for line in lines)
    end = " ".join(lines[lines.index("", lines.index("") + 1) :]).strip()
    assert end.startswith("Verified 10 classes in 7 min 12 s: 7 failed, 1 ok, 1 without support for")


def test_no_line_of_the_table_is_longer_than_asked_save_for_a_long_name() -> None:
    reports = [*examples.every_kind(), replace(examples.lost(), model="X" * 90)]
    for width in (60, 80, 120):
        long = [line for line in survey_lines(reports, width=width) if len(line) > width]
        assert all(line.startswith(("  Evil", "  X")) for line in long)
        assert len(long) >= (width < 90)


def test_the_reasons_of_the_unbuilt_are_shown_when_asked_for() -> None:
    reports = [examples.not_built(), examples.healthy()]
    assert "--show-unbuilt" in "\n".join(survey_lines(reports, width=80))
    shown = "\n".join(survey_lines(reports, width=80, show_unbuilt=True))
    assert "TimmBackbone: ImportError: timm is needed" in shown
    assert "--show-unbuilt" not in shown


def test_where_all_is_well_there_is_one_line() -> None:
    assert survey_lines([examples.healthy()], width=80, seconds=2.0) == ["Verified 1 class in 2.0 s: 1 ok."]
    assert survey_lines([], width=80) == ["Verified 0 classes."]


def test_what_is_after_a_surgery_stands_beside_and_below() -> None:
    lines = examples.remaining().lines()
    assert lines[0] == "StubbornModel (gpt_bigcode): FAILED; after wrap_blocks: FAILED"
    rows = [line.split() for line in lines]
    assert ["non_reentrant", "after", "reentrant", "after", "level"] in rows
    assert ["FAILED", "ok", "FAILED", "ok", "recompute"] in rows
    assert ["ok", "ok", "ok", "FAILED", "values"] in rows
    faults, faults_after = lines.index("  Faults"), lines.index("  Faults after wrap_blocks")
    assert any("CKPT001" in line for line in lines[faults:faults_after])
    assert "saw a relative error up to 0.3 (1 of 8 gradients). The generator's state is not restored" in text(
        examples.remaining()
    )
    assert any("layers.0.weight" in line for line in lines[faults_after:])
    assert any(line.startswith("  non_reentrant, after  410 KiB") for line in lines)
    assert "  Toy: 6 of 6 blocks checkpointed, non-reentrant" in lines


def test_a_refusal_has_its_sentence_and_is_no_fault() -> None:
    report = next(report for report in examples.with_repairs() if report.model.startswith("Gemma3n"))
    said = text(report)
    assert "(gemma3n): FAILED; after wrap_blocks: refused" in said
    assert f"Refused after wrap_blocks - reentrant: {examples.REFUSAL}" in said
    assert "Faults after wrap_blocks" not in said
    assert ["ok", "ok", "ok", "refused", "run"] in [line.split() for line in report.lines()]


def test_a_surgery_that_cannot_be_done_has_its_reason() -> None:
    report = next(report for report in examples.with_repairs() if report.model == "FooModel")
    assert "Not repaired: FooModel has no blocks to checkpoint" in text(report)
    assert text(report).startswith("FooModel (foomodel): unsupported; after wrap_blocks: not repaired")


def test_the_table_of_many_shows_before_and_after() -> None:
    lines = survey_lines(examples.with_repairs(), width=100, seconds=2.0)
    rows = [line.split() for line in lines]
    assert ["class", "non_reentrant", "after", "reentrant", "after", "rule"] in rows
    assert ["Gemma3nForCausalLM", "ok", "ok", "values", "refused", "CKPT003"] in rows
    assert ["PvtV2ForImageClassification", "ok", "not", "repaired", "set", "not", "repaired", "-"] in rows
    alone = lines[lines.index("Wrong or refused only after wrap_blocks: 1 class") :]
    assert alone[2].split() == ["SpoiltModel", "ok", "ok", "ok", "values", "-"]
    assert "; after wrap_blocks: 3 ok, 1 refused, 2 failed, 2 not repaired." in " ".join(lines)
