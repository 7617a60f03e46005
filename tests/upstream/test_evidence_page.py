"""evidence.md says what the evidence says, all of it, and nothing besides."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ckpt_surgery.upstream.evidence_page import evidence_markdown
from ckpt_surgery.upstream.results import Evidence, Ran, Row
from ckpt_surgery.verification.units import size
from tests.upstream import evidence_cases as cases


def section(page: str, title: str) -> str:
    """The part of the page under one of its headings."""
    (found,) = re.findall(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    return str(found)


def table_under(page: str, title: str) -> list[list[str]]:
    """The first table under a heading, without its header."""
    return cases.tables(section(page, title))[0][1:]


def in_sight(page: str) -> str:
    """The page without what is folded."""
    return re.sub(r"^<details>$.*?^</details>$", "", page, flags=re.DOTALL | re.MULTILINE)


def expected_row(row: Row) -> list[str]:
    where = [row.family, row.model, row.mode]
    if row.problem:
        return [*where, "-", "-", "-", "-", f"not measured: {row.problem}"]
    levels = [", ".join(row.before) or "ok", ", ".join(row.after) or "ok"]
    return [*where, *levels, size(row.kept_before), size(row.kept_after), row.verdict]


@pytest.mark.parametrize("name", ["ready", "not_ready"])
def test_the_tables_hold_what_the_data_says(name: str) -> None:
    evidence = cases.every_kind()[name]
    page = evidence_markdown(evidence)
    assert table_under(page, "Versions") == [[key, value] for key, value in sorted(evidence.versions.items())]
    assert table_under(page, "Before and after") == [expected_row(row) for row in evidence.rows]
    assert table_under(page, "Commits") == [
        [one.sha[:12], one.subject, *one.families, " ".join(one.rules), *one.files, word]
        for one, word in zip(evidence.commits, ("passed" if name == "ready" else "failed", "passed"), strict=True)
    ]


def test_a_change_in_the_data_changes_the_table() -> None:
    good = cases.ready()
    worse = replace(good, rows=(replace(good.rows[0], after=("set",)), *good.rows[1:]))
    assert table_under(evidence_markdown(good), "Before and after")[0][-1] == "repaired"
    assert table_under(evidence_markdown(worse), "Before and after")[0][-1] == "worse"


def test_repaired_is_said_only_of_rows_that_are() -> None:
    page = evidence_markdown(cases.not_ready())
    assert "repaired" not in page.replace("partly repaired", "")
    assert "4 pairs of class and mode: 1 partly repaired, 1 as before, 1 worse, 1 not measured." in page


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ready", "**Status: ready**: what is left is the review by a person."),
        ("unchecked", "**Status: unchecked**: not everything was checked."),
        ("not_ready", "**Status: not ready**: it is not to be opened as a pull request as it is."),
    ],
)
def test_the_first_lines_say_the_status_and_every_reason(name: str, said: str) -> None:
    evidence = cases.every_kind()[name]
    title, _, status, *rest = evidence_markdown(evidence).splitlines()
    assert title == f"# Evidence for `inline-branch`: {evidence.status}"
    assert status.startswith(said)
    assert [line for line in rest[: 1 + len(evidence.reasons)] if line.startswith("- ")] == rest[
        1 : 1 + len(evidence.reasons)
    ]


def test_a_caution_on_a_ready_series_is_told() -> None:
    page = evidence_markdown(replace(cases.ready(), reasons=("copies fails, on the base as well",)))
    assert "To know before that:\n\n- copies fails, on the base as well\n" in page
    assert "To know" not in evidence_markdown(cases.ready())


def test_the_commands_make_the_same_series_and_the_same_measurements() -> None:
    evidence = cases.ready()
    made, patched, measured = cases.fences(section(evidence_markdown(evidence), "To make and measure it again"))
    assert made == f"$ {evidence.command}\n"
    assert patched.splitlines() == [
        f"$ git switch --create {evidence.branch} {evidence.base}",
        "$ git am 0001-clvp.patch",
        "$ git am 0002-zamba2.patch",
    ]
    assert measured.splitlines() == [
        "$ PYTHONPATH=src ckpt_surgery verify ClvpEncoder",
        "$ PYTHONPATH=src ckpt_surgery verify Zamba2ForCausalLM",
    ]


def test_a_fault_that_several_classes_have_is_said_once_with_all_of_them() -> None:
    page = evidence_markdown(cases.ready())
    before = section(page, "Faults before")
    assert before.count("expected every block to be recomputed once") == 1
    assert "- `ClvpEncoder`, `Zamba2ForCausalLM` (both modes): expected" in before
    assert section(page, "Faults that remain").strip() == "None was seen, 4 pairs of class and mode measured."


def test_faults_that_remain_are_full_sentences_and_levels_without_one_are_named() -> None:
    remaining = section(evidence_markdown(cases.not_ready()), "Faults that remain")
    assert r"- `ClvpEncoder` (both modes): Expected `a|b`, saw \*c\*." in remaining
    assert "No sentence is known for `Zamba2ForCausalLM` (non_reentrant: recompute, cost)." in remaining


def test_classes_with_a_fault_in_other_modes_stand_apart() -> None:
    good = cases.ready()
    rows = (replace(good.rows[0], faults_before=()), *good.rows[1:])
    before = section(evidence_markdown(replace(good, rows=rows)), "Faults before")
    assert "- `Zamba2ForCausalLM` (both modes); `ClvpEncoder` (reentrant): expected" in before


def test_where_nothing_was_measured_no_fault_is_denied() -> None:
    unmeasured = tuple(replace(row, problem="no torch") for row in cases.ready().rows)
    for evidence in (cases.unchecked(), replace(cases.ready(), rows=unmeasured)):
        page = evidence_markdown(evidence)
        assert section(page, "Faults that remain").strip() == "Not measured."
        assert "`ckpt_surgery verify` ran" not in page
        assert "recomputed once" not in section(page, "Faults before")


def test_each_regression_test_has_its_failing_and_its_passing_run() -> None:
    tests = section(evidence_markdown(cases.ready()), "Regression tests")
    assert [row[-2:] for row in cases.tables(tests)[0][1:]] == [["failed", "passed"]] * 2
    assert tests.count("<summary>On the base: failed</summary>") == 2
    assert tests.count("<summary>On the series: passed</summary>") == 2
    assert [block.splitlines()[-1] for block in cases.fences(tests)] == ["1 failed", "1 passed"] * 2
    assert "1 failed" not in in_sight(tests)


def test_a_test_that_shows_nothing_or_is_not_there_is_said_to() -> None:
    tests = section(evidence_markdown(cases.not_ready()), "Regression tests")
    (none, added) = cases.tables(tests)[0][1:]
    assert none == ["clvp", "no test", "Nothing in the suite runs this block.", "not run", "not run"]
    assert added[1] == "a new test"
    assert added[-2:] == ["passed, so it does not show the fault", "not run"]
    assert "On the series: not run." in tests


def test_another_exit_code_than_that_of_a_failed_test_is_told() -> None:
    good = cases.ready()
    lost = replace(good.regressions[0], before=Ran("python -m pytest x", 5, "no tests ran"))
    tests = section(evidence_markdown(replace(good, regressions=(lost,))), "Regression tests")
    assert cases.tables(tests)[0][1][-2] == "ended with code 5"
    assert "failed" not in tests


def test_checkers_that_fail_come_first_and_in_sight() -> None:
    evidence = cases.not_ready()
    checks = section(evidence_markdown(evidence), "Upstream's checkers and tests")
    assert [row[:2] for row in cases.tables(checks)[0][1:]] == [
        ["copies", "failed"],
        ["old_one", "failed before too"],
        ["typing", "not run"],
        ["ok_one", "ok"],
    ]
    sight = in_sight(checks)
    assert "### `copies`: failed (exit code 1)" in sight
    assert "$ python utils/checkers.py copies" in sight
    assert "$ make old" not in sight
    assert checks.count("$ make old") == 2
    assert "ty is not installed." in sight


def test_a_breaking_change_has_both_signatures_and_every_caller() -> None:
    (change,) = cases.ready().signatures
    shown = section(evidence_markdown(cases.ready()), "Breaking changes")
    assert f"- {cases.ready().unsafe[0]}" in shown
    assert cases.fences(shown) == [f"forward({change.before})  # before\nforward({change.after})  # after\n"]
    for place in (f"{change.path}:{change.line}", *change.callers):
        assert f"`{place}`" in shown
    none = evidence_markdown(replace(cases.ready(), signatures=(), unsafe=()))
    assert section(none, "Breaking changes").strip() == "None."


def test_a_changed_signature_that_nobody_calls_is_said_to_be_one() -> None:
    (change,) = cases.ready().signatures
    page = evidence_markdown(replace(cases.ready(), signatures=(replace(change, callers=()),)))
    assert "No caller was found in the checkout." in page


def test_what_upstreams_tools_changed_is_told_by_commit() -> None:
    tools = section(evidence_markdown(cases.ready()), "What upstream's converter and checkers changed")
    assert cases.headings(tools) == ["### bbbbbbbbbbbb zamba2: checkpoint | once"]
    assert "Files that the converter wrote:\n\n- `src/transformers/models/zamba2/modeling_zamba2.py`" in tools
    assert "$ python utils/checkers.py modular_conversion --fix" in tools
    nothing = section(evidence_markdown(cases.empty()), "What upstream's converter and checkers changed")
    assert nothing.strip().startswith("Nothing:")


def test_the_comment_for_slow_tests_stands_in_a_block() -> None:
    evidence = cases.ready()
    assert cases.fences(section(evidence_markdown(evidence), "Slow tests")) == [f"{evidence.run_slow}\n"]
    assert "run-slow" not in evidence_markdown(cases.empty())


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


def test_a_long_series_is_folded_but_what_is_not_settled_stays_in_sight() -> None:
    evidence = cases.large()
    page = evidence_markdown(evidence)
    (open_rows, whole) = cases.tables(section(page, "Before and after"))
    assert [row[-1] for row in open_rows[1:]] == ["as before"]
    assert whole[1:] == [expected_row(row) for row in evidence.rows]
    assert "family7Model".capitalize() not in in_sight(section(page, "Models"))
    assert "Family7Model" in section(page, "Models")
    assert "<summary>20 files</summary>" in page


@pytest.mark.parametrize("name", cases.every_kind())
def test_the_page_depends_on_the_evidence_alone(name: str) -> None:
    evidence = cases.every_kind()[name]
    page = evidence_markdown(evidence)
    assert page == evidence_markdown(cases.every_kind()[name]) == evidence_markdown(cases.turned(evidence))
    assert page.endswith("\n")
    assert not page.endswith("\n\n")
    assert page != evidence_markdown(replace(evidence, base="f" * 40))


def test_everything_that_is_known_is_on_the_page() -> None:
    evidence = cases.ready()
    page = evidence_markdown(evidence)
    for text in words_of(evidence):
        assert text in page, text


def words_of(evidence: Evidence) -> list[str]:
    """Every name and sentence of a calm series."""
    words = [
        evidence.group,
        evidence.branch,
        evidence.base,
        evidence.base_name,
        evidence.command,
        evidence.coordination,
    ]
    words += [*evidence.files, *evidence.models, *evidence.patches, *evidence.rules, *evidence.rules.values()]
    words += [word for test in evidence.regressions for word in (*test.paths, *test.tests)]
    words += [ran.command for test in evidence.regressions for ran in (test.before, test.after) if ran]
    return words + [word for check in evidence.checks for word in (check.name, check.reason)]
