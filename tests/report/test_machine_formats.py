"""The JSON document and the Markdown page: complete, valid, and the same on every machine."""

from __future__ import annotations

import copy
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ckpt_surgery.measure.report import Report
from ckpt_surgery.report.html import html_page
from ckpt_surgery.report.markdown import survey_markdown
from ckpt_surgery.report.summary import Overview
from tests.report import examples

SCHEMA = json.loads((Path(__file__).parent / "survey.schema.json").read_text(encoding="utf-8"))


def document() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(Overview(examples.every_kind()).to_json(seconds=1.2345))
    return made


def test_the_document_is_valid_and_holds_every_report_in_order() -> None:
    made = document()
    jsonschema.validate(made, SCHEMA)
    assert made["counts"] == {"failed": 7, "ok": 1, "skipped": 0, "unsupported": 1, "not built": 1}
    assert made["seconds"] == 1.234
    assert [report["model"] for report in made["reports"]] == [report.model for report in examples.every_kind()]
    assert made["reports"] == [json.loads(report.to_json()) for report in examples.every_kind()]
    for report, data in zip(examples.every_kind(), made["reports"], strict=True):
        if report.model == "Gemma3nForCausalLM":  # what is not finite becomes null
            assert list(data["modes"][1]["errors"].values()).count(None) == 2
        else:
            assert Report.from_dict(data) == report
    none = json.loads(Overview([]).to_json())
    jsonschema.validate(none, SCHEMA)
    assert (none["reports"], none["seconds"]) == ([], None)


def test_a_mode_that_was_not_run_is_skipped_with_a_reason_in_every_format() -> None:
    reports = [examples.wrapped(), examples.nothing_measured()]
    made = json.loads(Overview(reports).to_json())
    jsonschema.validate(made, SCHEMA)
    assert (made["counts"]["ok"], made["counts"]["skipped"]) == (1, 1)
    assert [Report.from_dict(data) for data in made["reports"]] == reports
    reason = "wrap_blocks checkpoints non-reentrant in either mode"
    for text in (survey_markdown(reports), html_page(reports), str(reports[0]), str(reports[1])):
        assert reason in text
        assert "FAILED" not in text


def test_what_came_of_a_surgery_is_in_the_document_and_reads_back() -> None:
    reports = [report for report in examples.with_repairs() if report.model != "Gemma3nForCausalLM"]
    made = json.loads(Overview(reports).to_json())
    jsonschema.validate(made, SCHEMA)
    assert made["repairs"] == {"ok": 3, "refused": 1, "failed": 2, "not repaired": 1}
    assert document()["repairs"] is None
    assert [(report["repair"] or {}).get("status") for report in made["reports"][:3]] == ["ok", "ok", "failed"]
    assert [Report.from_dict(data) for data in made["reports"]] == reports
    refused = examples.after_surgery(examples.healthy(), examples.refused())
    assert Report.from_dict(json.loads(refused.to_json())) == refused


@pytest.mark.parametrize(
    "path",
    [
        ["counts", "failed"],
        ["reports", 0, "status"],
        ["reports", 0, "modes", 0, "mode"],
        ["reports", 0, "modes", 0, "cost"],
    ],
    ids=lambda path: ".".join(map(str, path)),
)
def test_the_schema_sees_a_wrong_value(path: list[Any]) -> None:
    made = copy.deepcopy(document())
    holder = made
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = "wrong"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(made, SCHEMA)


def test_the_page_depends_on_results_alone() -> None:
    reports = examples.every_kind()
    page = survey_markdown(reports)
    random.Random(0).shuffle(reports)
    slower = [
        replace(report, seconds={"build": 9.0}, modes=tuple(replace(mode, seconds=7.0) for mode in report.modes))
        for report in reports
    ]
    assert survey_markdown(slower) == page
    assert survey_markdown(reports[1:]) != page


def test_the_markdown_page_says_no_more_than_there_is() -> None:
    page = survey_markdown(examples.every_kind())
    assert "wrap_blocks" not in page
    assert "--fix" not in page
    plain = re.sub(r"`[^`]*`", "", page)
    assert not re.search(r"(?<!\\)<(?!/?(details|summary)>)", plain), "a name is no markup"
    assert r"\*Block\* \_of\_ all" in plain
    healthy = survey_markdown([examples.healthy()])
    assert "What is broken" not in healthy
    assert "Causes" not in healthy
    assert survey_markdown([]).startswith("# Gradient checkpointing\n")
