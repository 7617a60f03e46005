"""evidence.md says what the evidence says, in order of importance, and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ckpt_surgery.upstream.evidence.page import evidence_markdown
from ckpt_surgery.upstream.evidence.results import Evidence
from tests.upstream.evidence import evidence_cases as cases


def section(page: str, title: str) -> str:
    """Return the part of the page under one of its headings."""
    (body,) = re.findall(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    return str(body)


def under(evidence: Evidence, title: str) -> str:
    return section(evidence_markdown(evidence), title)


# --- the page as a whole ---


@pytest.mark.parametrize("name", cases.every_kind())
def test_the_status_and_every_reason_come_first(name: str) -> None:
    evidence = cases.every_kind()[name]
    title, _, status, *rest = evidence_markdown(evidence).splitlines()
    assert title == f"# Evidence for `all`: {evidence.status}"
    assert status.startswith(f"**Status: {evidence.status}**: ")
    listed = rest[1 : rest.index("The series:") - 1] if evidence.reasons else []
    assert len(listed) == len(evidence.reasons)
    assert all(line.startswith("- ") for line in listed)


def test_text_of_others_breaks_no_block_and_makes_no_heading() -> None:
    page = evidence_markdown(cases.not_ready())
    assert sum(cases.NASTY in block for block in cases.fences(page)) == 3
    assert not any("no heading" in heading for heading in cases.headings(page))
    assert page.count("\n<details>\n") == page.count("\n</details>\n")
    calm = replace(cases.not_ready(), notes=("calm",))
    assert cases.headings(page) == cases.headings(evidence_markdown(calm))


@pytest.mark.parametrize("name", cases.every_kind())
def test_the_page_depends_on_the_evidence_alone(name: str) -> None:
    evidence = cases.every_kind()[name]
    page = evidence_markdown(evidence)
    assert page == evidence_markdown(cases.every_kind()[name]) == evidence_markdown(cases.turned(evidence))
    assert page.endswith("\n")
    assert not page.endswith("\n\n")
    assert page != evidence_markdown(replace(evidence, base="f" * 40))


def test_everything_that_is_known_is_on_the_page_but_what_passed_wrote() -> None:
    evidence = cases.ready()
    page = evidence_markdown(evidence)
    for text in words_of(evidence):
        assert text in page, text
    for check in evidence.checks:
        assert check.ran
        assert check.ran.output not in page


def words_of(evidence: Evidence) -> list[str]:
    """Collect every name and sentence of a calm series."""
    words = [
        evidence.group,
        evidence.branch,
        evidence.base,
        evidence.base_name,
        evidence.command,
        evidence.coordination,
        evidence.run_slow,
    ]
    words += [*evidence.files, *evidence.models, *evidence.patches, *evidence.rules, *evidence.rules.values()]
    words += [word for test in evidence.regressions for word in (*test.paths, *test.tests)]
    words += [ran.command for test in evidence.regressions for ran in (test.before, test.after) if ran]
    return words + [check.name for check in evidence.checks]


# --- before and after ---


def test_where_nothing_was_measured_no_fault_is_denied() -> None:
    for evidence in (cases.unchecked(), cases.bare(), replace(cases.ready(), rows=())):
        page = evidence_markdown(evidence)
        assert "not measured" in page.lower()
        assert "`ckpt_surgery verify` ran" not in page
        assert "## Faults" not in page


# --- faults ---


# --- regression tests ---


# --- siblings ---
