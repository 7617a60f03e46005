"""evidence.md says what the evidence says, in the order in which it matters, and nothing besides."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ckpt_surgery.upstream.evidence.page import evidence_markdown, siblings_markdown
from ckpt_surgery.upstream.evidence.results import CommandRun, Evidence, RegressionKind
from tests.upstream.evidence import evidence_cases as cases


def section(page: str, title: str) -> str:
    """The part of the page under one of its headings."""
    (body,) = re.findall(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    return str(body)


def under(evidence: Evidence, title: str) -> str:
    return section(evidence_markdown(evidence), title)


def table_under(evidence: Evidence, title: str) -> list[list[str]]:
    """The first table under a heading, without its header."""
    return cases.tables(under(evidence, title))[0][1:]


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


def test_the_same_reason_stands_once() -> None:
    page = evidence_markdown(cases.not_ready())
    for reason in ("nothing in the suite runs this block", r"it needs \*ty\*, which the interpreter", "60 s"):
        assert page.count(reason) == 1, reason


def test_text_of_others_breaks_no_block_and_makes_no_heading() -> None:
    page = evidence_markdown(cases.not_ready())
    assert sum(cases.NASTY in block for block in cases.fences(page)) == 3
    assert not any("no heading" in heading for heading in cases.headings(page))
    assert page.count("\n<details>\n") == page.count("\n</details>\n")
    calm = replace(cases.not_ready(), notes=("calm",))
    assert cases.headings(page) == cases.headings(evidence_markdown(calm))


@pytest.mark.parametrize("name", cases.every_kind())
def test_every_folded_part_is_closed_and_every_line_is_outside_of_html(name: str) -> None:
    page = evidence_markdown(cases.every_kind()[name])
    html = "".join(token.content for token in cases.parsed(page) if token.type == "html_block")
    lines = [line for line in html.splitlines() if line]
    assert all(re.fullmatch(r"</?details>|<summary>[^<>]*</summary>", line) for line in lines)
    assert not any(child.type == "html_inline" for token in cases.parsed(page) for child in token.children or [])


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
    """Every name and sentence of a calm series."""
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


def test_repaired_is_said_only_of_rows_that_are() -> None:
    page = evidence_markdown(cases.not_ready())
    assert "repaired" not in page.replace("partly repaired", "")
    said = "2 classes, 2 modes each: 1 partly repaired, 1 as before, 1 worse, 1 not measured of 4 pairs."
    assert f"\n{said}\n" in page


def test_a_class_with_one_mode_is_not_said_to_have_two() -> None:
    evidence = replace(cases.ready(), rows=cases.ready().rows[:3])
    assert "\n2 classes: all repaired.\n" in evidence_markdown(evidence)


def test_a_change_in_the_data_changes_the_table() -> None:
    good = cases.ready()
    worse = replace(good, rows=tuple(replace(row, after=("set",)) for row in good.rows))
    assert {row[-1] for row in table_under(worse, "Before and after")} == {"worse"}


def test_of_many_classes_what_is_not_settled_stays_in_sight() -> None:
    shown = under(cases.large(), "Before and after")
    (open_rows, whole) = cases.tables(shown)
    assert [row[0] for row in open_rows[1:]] == ["Family19Model"]
    assert [row[0] for row in whole[1:]] == [f"Family{number}Model" for number in range(20)]
    assert "Family7Model" not in cases.in_sight(shown)
    assert set(cases.folds(shown)) == {"20 classes before and after", "20 model classes"}


def test_where_nothing_was_measured_no_fault_is_denied() -> None:
    for evidence in (cases.unchecked(), cases.bare(), replace(cases.ready(), rows=())):
        page = evidence_markdown(evidence)
        assert "not measured" in page.lower()
        assert "`ckpt_surgery verify` ran" not in page
        assert "## Faults" not in page


# --- faults ---


def test_classes_with_a_fault_in_other_modes_stand_apart() -> None:
    good = cases.ready()
    rows = (replace(good.rows[0], faults_before=()), *good.rows[1:])
    before = under(replace(good, rows=rows), "Faults before")
    assert "- `Zamba2ForCausalLM` (both modes); `ClvpEncoder` (reentrant): expected" in before


def test_the_sentences_of_a_run_without_a_verdict_are_not_told() -> None:
    good = cases.ready()
    rows = tuple(replace(row, problem="no torch", faults_after=("Saw c.",)) for row in good.rows)
    assert "## Faults" not in evidence_markdown(replace(good, rows=rows))


# --- regression tests ---


def test_the_failing_run_is_folded_in_full_and_the_passing_one_is_its_last_line() -> None:
    first, *_ = good = cases.ready().regressions
    assert first.before
    assert first.after
    long = replace(
        first, before=CommandRun("pytest", 1, "a\n1 failed"), after=CommandRun("pytest", 0, "b\n1 passed in *3* s\n")
    )
    tests = under(replace(cases.ready(), regressions=(long, good[1])), "Regression tests")
    assert [row[-2:] for row in cases.tables(tests)[0][1:]] == [["failed", "passed"]] * 2
    assert list(cases.folds(tests)) == ["clvp on the base: failed", "zamba2 on the base: failed"]
    assert cases.fences(tests)[0] == "$ pytest\na\n1 failed\n"
    assert "- clvp on the series: `pytest`: 1 passed in \\*3\\* s\n" in tests
    assert "\nb\n" not in tests
    assert "1 failed" not in cases.in_sight(tests)


def test_of_many_regression_tests_those_that_are_missing_stay_in_sight() -> None:
    many = cases.large()
    missing = replace(
        many.regressions[3], kind=RegressionKind.NONE, before=None, after=None, tests=(), reason="none runs it"
    )
    tests = under(
        replace(many, regressions=(*many.regressions[:3], missing, *many.regressions[4:])), "Regression tests"
    )
    in_sight, whole = cases.tables(tests)
    assert [row[0] for row in in_sight[1:]] == ["family3"]
    assert len(whole[1:]) == 20
    assert len(cases.tables(under(many, "Regression tests"))) == 1


def test_the_comment_for_slow_tests_is_one_line() -> None:
    assert "\nA maintainer starts the slow tests with `run-slow: clvp, zamba2`.\n" in evidence_markdown(cases.ready())
    assert "run-slow" not in evidence_markdown(replace(cases.ready(), commits=()))


# --- siblings ---


def test_families_of_the_series_come_first_and_many_siblings_are_folded() -> None:
    (ours, other) = cases.ready().siblings
    many = (*(replace(other, family=f"family{number}") for number in range(30)), ours)
    page = siblings_markdown(replace(cases.ready(), siblings=many))
    assert list(cases.folds(page)) == ["31 families"]
    assert [row[0] for row in cases.tables(page)[0][1:]] == ["clvp", *(sibling.family for sibling in many[:-1])]
