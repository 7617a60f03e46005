"""evidence.md says what the evidence says, in the order in which it matters, and nothing besides."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ckpt_surgery.upstream.evidence.evidence_page import evidence_markdown
from ckpt_surgery.upstream.evidence.results import Evidence, Ran
from tests.upstream.evidence import evidence_cases as cases

HEADINGS = [
    "Before and after",
    "Regression tests",
    "Breaking changes",
    "Upstream's checkers and tests",
    "Faults before",
    "Faults that remain",
    "Commits",
    "What upstream's converter and checkers changed",
    "Notes",
    "To make and measure it again",
]


def section(page: str, title: str) -> str:
    """The part of the page under one of its headings."""
    (found,) = re.findall(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    return str(found)


def under(evidence: Evidence, title: str) -> str:
    return section(evidence_markdown(evidence), title)


def table_under(evidence: Evidence, title: str) -> list[list[str]]:
    """The first table under a heading, without its header."""
    return cases.tables(under(evidence, title))[0][1:]


# --- the page as a whole ---


def test_what_matters_comes_first() -> None:
    title, *found = cases.headings(evidence_markdown(cases.not_ready()))
    assert title == "# Evidence for all: not ready"
    assert found == [f"## {heading}" for heading in HEADINGS]


def test_what_there_is_nothing_to_say_about_has_no_section() -> None:
    page = evidence_markdown(cases.bare())
    left_out = {"Breaking changes", "Faults before", "Faults that remain", "Notes"}
    assert cases.headings(page)[1:] == [f"## {heading}" for heading in HEADINGS if heading not in left_out]
    assert "\nBreaking changes: none.\n" in page
    assert not re.search(r"\bNone\b|\bNothing\b|\(no output\)", page)
    assert "Versions" not in page


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ready", "**Status: ready**: what is left is the review by a person."),
        ("cautious", "**Status: ready**: what is left is the review by a person. Known limits:"),
        ("unchecked", "**Status: unchecked**: not everything was checked. Why, the gravest first:"),
        ("not_ready", "**Status: not ready**: it is not to be opened as a pull request as it is. Why, the gravest"),
    ],
)
def test_the_first_lines_say_the_status_and_every_reason(name: str, said: str) -> None:
    evidence = cases.every_kind()[name]
    title, _, status, *rest = evidence_markdown(evidence).splitlines()
    assert title == f"# Evidence for `all`: {evidence.status}"
    assert status.startswith(said)
    listed = rest[1 : rest.index("The series:") - 1]
    assert len(listed) == len(evidence.reasons)
    assert all(line.startswith("- ") for line in listed)


def test_a_reason_is_told_in_the_list_and_in_the_table_and_no_third_time() -> None:
    page = evidence_markdown(cases.not_ready())
    for reason in ("nothing in the suite runs this block", r"it needs \*ty\*, which the interpreter", "60 s"):
        assert page.count(reason) == 2, reason


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


def test_a_class_has_one_line_and_equal_modes_share_a_cell() -> None:
    assert table_under(cases.ready(), "Before and after") == [
        ["ClvpEncoder", "recompute, cost", "ok", "3.0 MiB -> 200 KiB", "repaired"],
        ["Zamba2ForCausalLM", "recompute, cost", "ok", "3.0 MiB -> 200 KiB", "repaired"],
    ]
    assert "\n2 classes, 2 modes each: all repaired.\n" in evidence_markdown(cases.ready())


def test_modes_that_differ_are_told_apart() -> None:
    assert table_under(cases.not_ready(), "Before and after") == [
        [
            "ClvpEncoder",
            "recompute, cost",
            "non_reentrant: recompute; reentrant: values",
            "3.0 MiB -> 200 KiB",
            "non_reentrant: partly repaired; reentrant: worse",
        ],
        [
            "Zamba2ForCausalLM",
            "non_reentrant: recompute, cost; reentrant: -",
            "non_reentrant: recompute, cost; reentrant: -",
            "non_reentrant: 3.0 MiB -> 200 KiB; reentrant: -",
            "non_reentrant: as before; reentrant: not measured (The step took longer than 60 s | and was ended.)",
        ],
    ]


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


def test_classes_that_were_well_before_are_folded_names() -> None:
    shown = under(cases.cautious(), "Before and after")
    assert [row[0] for row in cases.tables(shown)[0][1:]] == ["ClvpEncoder", "Zamba2ForCausalLM"]
    assert cases.folds(shown)["1 class ok before and after"] == "`ClvpDecoder`"


def test_a_class_that_was_well_in_one_mode_alone_stays_in_sight() -> None:
    first, second, *others = cases.ready().rows
    half = replace(cases.ready(), rows=(replace(first, before=()), second, *others))
    assert table_under(half, "Before and after")[0] == [
        "ClvpEncoder",
        "non_reentrant: ok; reentrant: recompute, cost",
        "ok",
        "3.0 MiB -> 200 KiB",
        "non_reentrant: ok before; reentrant: repaired",
    ]
    assert "ok before and after" not in evidence_markdown(half)


def test_of_many_classes_what_is_not_settled_stays_in_sight() -> None:
    shown = under(cases.large(), "Before and after")
    (open_rows, whole) = cases.tables(shown)
    assert [row[0] for row in open_rows[1:]] == ["Family19Model"]
    assert [row[0] for row in whole[1:]] == [f"Family{number}Model" for number in range(20)]
    assert "Family7Model" not in cases.in_sight(shown)
    assert set(cases.folds(shown)) == {"20 classes before and after", "20 model classes"}


def test_only_levels_that_failed_are_explained() -> None:
    shown = under(cases.ready(), "Before and after")
    assert "What the levels check:\n\n- `recompute`: every block is recomputed once\n- `cost`:" in shown
    assert "`values`:" not in shown
    assert "What the levels check" not in under(cases.unchecked(), "Before and after")


def test_where_nothing_was_measured_no_fault_is_denied() -> None:
    for evidence in (cases.unchecked(), cases.bare(), replace(cases.ready(), rows=())):
        page = evidence_markdown(evidence)
        assert "not measured" in page.lower()
        assert "`ckpt_surgery verify` ran" not in page
        assert "## Faults" not in page


# --- faults ---


def test_a_fault_that_several_classes_have_is_said_once_with_all_of_them() -> None:
    before = under(cases.ready(), "Faults before")
    assert before.count("expected every block to be recomputed once") == 1
    assert "- `ClvpEncoder`, `Zamba2ForCausalLM` (both modes): expected" in before


def test_faults_that_remain_are_full_sentences_and_levels_without_one_are_named() -> None:
    remaining = under(cases.not_ready(), "Faults that remain")
    assert r"- `ClvpEncoder` (both modes): Expected `a|b`, saw \*c\*." in remaining
    assert "No sentence is known for `Zamba2ForCausalLM` (non_reentrant: recompute, cost)." in remaining


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
    long = replace(first, before=Ran("pytest", 1, "a\n1 failed"), after=Ran("pytest", 0, "b\n1 passed in *3* s\n"))
    tests = under(replace(cases.ready(), regressions=(long, good[1])), "Regression tests")
    assert [row[-2:] for row in cases.tables(tests)[0][1:]] == [["failed", "passed"]] * 2
    assert list(cases.folds(tests)) == ["clvp on the base: failed", "zamba2 on the base: failed"]
    assert cases.fences(tests)[0] == "$ pytest\na\n1 failed\n"
    assert "- clvp on the series: `pytest`: 1 passed in \\*3\\* s\n" in tests
    assert "\nb\n" not in tests
    assert "1 failed" not in cases.in_sight(tests)


def test_a_test_that_shows_nothing_or_is_not_there_is_said_to() -> None:
    found = table_under(cases.not_ready(), "Regression tests")
    assert found == [
        ["clvp", "no test", "nothing in the suite runs this block", "not run", "not run"],
        ["zamba2", "no test", "it passes on the base", "passed, so it does not show the fault", "not run"],
    ]


def test_what_was_taken_away_for_a_test_is_told_beside_it() -> None:
    first, *_ = cases.ready().regressions
    lifted = replace(first, reason="the skip in ClvpTest")
    ((_, kind, tests, *_),) = table_under(replace(cases.ready(), regressions=(lifted,)), "Regression tests")
    assert kind.endswith("kept it from running went (the skip in ClvpTest)")
    assert tests == first.tests[0]


def test_another_exit_code_than_that_of_a_failed_test_is_told() -> None:
    good = cases.ready()
    lost = replace(good.regressions[0], before=Ran("python -m pytest x", 5, "no tests ran"))
    evidence = replace(good, regressions=(lost,))
    assert table_under(evidence, "Regression tests")[0][-2] == "ended with code 5"
    assert "failed" not in under(evidence, "Regression tests")


def test_of_many_regression_tests_those_that_are_missing_stay_in_sight() -> None:
    many = cases.large()
    missing = replace(many.regressions[3], kind="none", before=None, after=None, tests=(), reason="none runs it")
    tests = under(
        replace(many, regressions=(*many.regressions[:3], missing, *many.regressions[4:])), "Regression tests"
    )
    in_sight, whole = cases.tables(tests)
    assert [row[0] for row in in_sight[1:]] == ["family3"]
    assert len(whole[1:]) == 20
    assert len(cases.tables(under(many, "Regression tests"))) == 1


# --- breaking changes ---


def test_a_breaking_change_has_both_signatures_and_every_caller() -> None:
    (change,) = cases.ready().signatures
    shown = under(cases.ready(), "Breaking changes")
    assert f"- {cases.ready().unsafe[0]}" in shown
    assert cases.fences(shown) == [f"forward({change.before})  # before\nforward({change.after})  # after\n"]
    for place in (f"{change.path}:{change.line}", *change.callers):
        assert f"`{place}`" in shown
    assert "Breaking changes: none" not in evidence_markdown(cases.ready())


def test_a_changed_signature_that_nobody_calls_is_said_to_be_one() -> None:
    (change,) = cases.ready().signatures
    page = evidence_markdown(replace(cases.ready(), signatures=(replace(change, callers=()),)))
    assert "No caller was found in the checkout." in page


# --- upstream's tools ---


def test_checkers_that_did_not_pass_are_in_sight_and_their_outputs_folded() -> None:
    checks = under(cases.not_ready(), "Upstream's checkers and tests")
    assert [row[:2] for row in cases.tables(checks)[0][1:]] == [
        ["copies", "failed"],
        ["repo", "failed before too"],
        ["types", "not run"],
    ]
    folds = cases.folds(checks)
    assert list(folds) == [
        "copies on the series: failed",
        "repo on the series: ended with code 2",
        "repo on the base: ended with code 2",
        "1 passed",
    ]
    assert folds["1 passed"] == "`inits`"
    assert "`python utils/checkers.py copies`" in cases.in_sight(checks)


def test_a_checker_that_says_the_same_on_the_base_is_shown_once() -> None:
    checks = under(cases.cautious(), "Upstream's checkers and tests")
    assert list(cases.folds(checks)) == ["repo on the series and on the base: failed", "2 passed"]


def test_where_every_checker_passed_there_is_one_folded_line() -> None:
    checks = under(cases.ready(), "Upstream's checkers and tests")
    assert cases.folds(checks) == {"2 passed": "`copies`, `tests/models/clvp`"}
    assert not cases.in_sight(checks).strip()


def test_what_upstreams_tools_changed_is_told_by_commit() -> None:
    tools = under(cases.ready(), "What upstream's converter and checkers changed")
    assert tools.strip().splitlines() == [
        "`bbbbbbbbbbbb`, zamba2: checkpoint | once:",
        "",
        "- the converter wrote: `src/transformers/models/zamba2/modeling_zamba2.py`",
    ]
    (clvp, _) = cases.ready().commits
    assert "What upstream's" not in evidence_markdown(replace(cases.ready(), commits=(clvp,)))


def test_a_fixer_that_failed_is_told_with_what_it_wrote() -> None:
    tools = under(cases.not_ready(), "What upstream's converter and checkers changed")
    assert list(cases.folds(tools)) == ["make fix-repo: ended with code 2"]
    assert "`aaaaaaaaaaaa`, clvp: checkpoint | once:" in tools


# --- commits, and the way to make it again ---


@pytest.mark.parametrize("name", ["ready", "not_ready", "unchecked"])
def test_an_import_is_told_only_where_it_failed(name: str) -> None:
    evidence = cases.every_kind()[name]
    assert table_under(evidence, "Commits") == [
        [one.sha[:12], one.subject, *one.families, " ".join(one.rules), *one.files] for one in evidence.commits
    ]
    told = "`aaaaaaaaaaaa` has a module that cannot be imported:" in under(evidence, "Commits")
    assert told == (name == "not_ready")
    assert "import transformers" not in evidence_markdown(cases.ready())


def test_files_and_models_are_one_folded_line_each() -> None:
    page = evidence_markdown(cases.ready())
    folds = cases.folds(page)
    assert folds["2 model classes"] == "`ClvpEncoder`, `Zamba2ForCausalLM`"
    assert folds["2 files"] == ", ".join(f"`{file}`" for file in cases.ready().files)


def test_the_commands_make_the_same_series_and_the_same_measurements() -> None:
    evidence = cases.ready()
    again = under(evidence, "To make and measure it again")
    made, patched, measured = cases.fences(again)
    assert made == f"$ {evidence.command}\n"
    assert patched.splitlines() == [
        f"$ git switch --create {evidence.branch} {evidence.base}",
        "$ git am 0001-clvp.patch 0002-zamba2.patch",
    ]
    assert measured.splitlines() == [
        "$ PYTHONPATH=src ckpt_surgery verify ClvpEncoder",
        "$ PYTHONPATH=src ckpt_surgery verify Zamba2ForCausalLM",
    ]
    assert again.rstrip().splitlines()[-1] == (
        "Versions: `ckpt_surgery` 0.1.0, `git` 2.43.0, `python` 3.11.9, `ruff` 0.14.10, `torch` 2.13.0, "
        "`transformers` 5.5.0.dev0."
    )


def test_the_comment_for_slow_tests_is_one_line() -> None:
    assert "\nA maintainer starts the slow tests with `run-slow: clvp, zamba2`.\n" in evidence_markdown(cases.ready())
    assert "run-slow" not in evidence_markdown(replace(cases.ready(), commits=()))
