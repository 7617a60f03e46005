"""The lines for people: one model in full, and the table of many."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpt_surgery.measure.report import Report
from tests.report import examples

ALL = examples.every_kind() + examples.with_repairs()


@pytest.mark.parametrize("report", ALL, ids=lambda report: report.model)
def test_a_terminal_of_a_hundred_columns_and_without_unicode_shows_it(report: Report) -> None:
    assert max(map(len, report.lines())) <= 100
    assert "\n".join(report.lines()) == str(report)
    assert "\n".join([*report.lines(), *examples.survey_lines([report], width=80, show_unbuilt=True)]).isascii()


def test_no_line_of_the_table_is_longer_than_asked_save_for_a_long_name() -> None:
    reports = [*examples.every_kind(), replace(examples.lost(), model="X" * 90)]
    for width in (60, 80, 120):
        long = [line for line in examples.survey_lines(reports, width=width) if len(line) > width]
        assert all(line.startswith(("  Evil", "  X")) for line in long)
        assert len(long) >= (width < 90)


def test_the_reasons_of_the_unbuilt_are_shown_when_asked_for() -> None:
    reports = [examples.not_built(), examples.healthy()]
    assert "--show-unbuilt" in "\n".join(examples.survey_lines(reports, width=80))
    shown = "\n".join(examples.survey_lines(reports, width=80, show_unbuilt=True))
    assert "TimmBackbone: ImportError: timm is needed" in shown
    assert "--show-unbuilt" not in shown
