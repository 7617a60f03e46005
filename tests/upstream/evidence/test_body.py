"""body.md keeps the template, ticks nothing and leaves the words to a human; siblings.md lists what is elsewhere."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ckpt_surgery.upstream.evidence.body import HUMAN_PLACE, pull_request_body, siblings_markdown
from ckpt_surgery.upstream.evidence.evidence_page import evidence_markdown
from ckpt_surgery.upstream.evidence.results import Evidence
from ckpt_surgery.upstream.evidence.tables import before_and_after
from tests.upstream.evidence import evidence_cases as cases

PLACE = f"**TO BE WRITTEN BY YOU** {HUMAN_PLACE}"

TEMPLATE = """\
# What is this?

<!--
Say it here.
# not a heading
-->

<!-- Leave out if there is none -->

Fixes # (issue)

## Rules

- [ ] I am no robot.

## Before you open it
- [x] A ticked box, with a [link](https://example.org#x).
  * [X] Nested
    1. [x] and deeper
> - [x] quoted
- [x](https://example.org) is a link
- the array [x] is no box

## Who reads it?

<!-- Name somebody, @ and all. -->
"""
ASKED = [
    "<!-- What changes and why",
    "Why this is not a duplicate:",
    "Which lines I reviewed",
    "Which assistance I used",
]


def body(evidence: Evidence, template: str | None = TEMPLATE) -> str:
    return pull_request_body(evidence, template)


def test_the_template_is_kept_whole_around_the_facts() -> None:
    page = body(cases.ready())
    head, rest = TEMPLATE.split("\n\n<!-- Leave out", 1)
    unticked = re.sub(r"\[[xX]\](?=[ ]([AaNq]|and))", "[ ]", rest)
    assert page.startswith(f"{head}\n\n{PLACE}\n")
    assert page.endswith(f"\n\n<!-- Leave out{unticked}")
    assert "Fixes # (issue)" in page


def test_no_box_is_ticked_and_none_is_lost() -> None:
    page = body(cases.ready())
    boxes = re.findall(r"^[ >]*(?:[-*]|\d+\.) \[(.)\] ", page, re.MULTILINE)
    assert boxes == [" "] * 5
    assert "- [x](https://example.org) is a link" in page
    assert "- the array [x] is no box" in page
    assert len(re.findall(r"^[ >]*(?:[-*]|\d+\.) \[[xX]\] ", TEMPLATE, re.MULTILINE)) == 4


def test_the_human_has_four_places_and_they_are_where_they_should_be() -> None:
    page = body(cases.ready())
    lines = page.splitlines()
    found = [at for at, line in enumerate(lines) if HUMAN_PLACE in line]
    assert len(found) == page.count(PLACE) == page.count(HUMAN_PLACE) == 4
    assert lines[found[0]] == PLACE
    assert lines[found[0] - 2] == "-->"
    assert lines[found[0] + 1].startswith(ASKED[0])
    assert [lines[at].startswith(asked) for at, asked in zip(found[1:], ASKED[1:], strict=True)] == [True] * 3
    assert found[0] < lines.index("## Evidence") < lines.index("### Disclosure") < found[1] < lines.index("## Rules")


def test_an_empty_place_is_seen_by_who_reads_the_description() -> None:
    assert HUMAN_PLACE == "<!-- write this yourself -->"
    seen = re.sub(r"<!--.*?-->", "", body(cases.ready()), flags=re.DOTALL)
    assert seen.count("TO BE WRITTEN BY YOU") == 4


def test_the_headings_are_those_of_the_template_with_ours_between() -> None:
    assert cases.headings(body(cases.ready())) == [
        "# What is this?",
        "## Evidence",
        "### Commits",
        "### Before and after",
        "### Regression tests",
        "### Breaking changes",
        "### Upstream's checkers and tests",
        "### Disclosure",
        "## Rules",
        "## Before you open it",
        "## Who reads it?",
    ]


def test_without_an_issue_the_body_stops_after_the_facts_and_says_why() -> None:
    page = body(cases.uncoordinated())
    assert cases.headings(page)[-1] == "### Disclosure"
    for left_out in ("Fixes #", "[ ]", "Rules", "Who reads it?", "duplicate", "gh pr"):
        assert left_out not in page
    assert page.rstrip().splitlines()[-1].startswith("This description stops here: no issue is named")
    assert "`--coordination`" in page
    assert page.count(HUMAN_PLACE) == 1
    assert "stops here" not in body(cases.ready())


@pytest.mark.parametrize(
    ("name", "banner"),
    [
        ("not_ready", "> **Not ready**: not to be opened as a pull request as it is. Why, the gravest first:"),
        ("unchecked", "> **Unchecked**: finish these before opening, as far as they can be:"),
    ],
)
def test_what_is_to_be_done_first_stands_above_everything_and_once(name: str, banner: str) -> None:
    evidence = cases.every_kind()[name]
    page = body(evidence)
    first, empty, *rest = page.splitlines()
    assert (first, empty) == (banner, ">")
    told = rest[: len(evidence.reasons)]
    assert all(line.startswith("> - ") for line in told)
    assert rest[len(told)] == ""
    assert "**Status" not in page
    assert rest[0] not in "\n".join(rest[1:])


def test_a_series_that_is_ready_has_no_banner_and_says_what_is_known() -> None:
    page = body(cases.cautious())
    assert not page.startswith(">")
    assert "**Status: ready**: what is left is the review by a person. Known limits:\n\n- repo fails, on" in page


def test_a_class_has_one_line_as_on_the_page_of_the_evidence() -> None:
    for evidence in (cases.cautious(), cases.not_ready(), cases.large()):
        page = body(evidence)
        assert before_and_after(evidence.rows) in page
        assert before_and_after(evidence.rows) in evidence_markdown(evidence)
    assert "Faults that remain:" in body(cases.not_ready())
    assert "Faults that remain:" not in body(cases.ready())


def test_the_facts_have_tests_and_the_commands() -> None:
    evidence = cases.ready()
    page = body(evidence)
    for run in (ran for test in evidence.regressions for ran in (test.before, test.after) if ran):
        assert f"$ {run.command}\n" in page
    assert f"`{evidence.run_slow}`" in page
    assert "| failed | passed |" in page
    assert evidence.signatures[0].callers[0] in page
    assert "Breaking changes: none" not in page
    assert "\nBreaking changes: none.\n" in body(cases.bare())


def test_of_upstreams_checkers_those_that_passed_are_a_number() -> None:
    page = body(cases.not_ready())
    (shown,) = (table for table in cases.tables(page) if table[0][0] == "checker")
    assert [row[:2] for row in shown[1:]] == [
        ["copies", "failed"],
        ["repo", "failed before too"],
        ["types", "not run"],
    ]
    assert "\n1 passed.\n" in page
    assert "`inits`" not in page
    assert "### Upstream's checkers and tests\n\n2 passed.\n" in body(cases.ready())
    assert "passed." not in body(cases.unchecked())


def test_rules_are_named_with_what_they_say() -> None:
    for code, said in cases.ready().rules.items():
        assert f"- {code}: {said}\n" in body(cases.ready())


def test_it_is_disclosed_what_made_the_series_and_with_what_command() -> None:
    for evidence in (cases.ready(), cases.uncoordinated()):
        page = body(evidence)
        said = "a program that rewrites model source by rules and measures the result:"
        assert f"Made with `ckpt_surgery 0.1.0`, {said}" in page
        assert f"$ {evidence.command}\n" in cases.fences(page)
    assert f"Agreed on in: {cases.ISSUE}" in body(cases.ready())


def test_without_a_template_the_headings_are_ours_and_it_is_said() -> None:
    for template in (None, "", " \n\n"):
        page = body(cases.ready(), template)
        assert page.startswith("# What this changes, and why\n\n<!-- This checkout has no pull request template")
        assert cases.headings(page)[-1] == "## For the reviewers"
        assert "Fixes # (issue)" in page
        assert page.count(PLACE) == page.count(HUMAN_PLACE) == 5
    assert "has no pull request template" not in body(cases.ready())


PLACED = {
    "no heading": ("Tell us.\n\n- [ ] done\n", "", "Tell us."),
    "no heading, a comment": ("<!-- Hello. -->\nTell us.\n", "<!-- Hello. -->", "Tell us."),
    "a comment before the heading": ("<!-- License -->\n# Why\n\nText\n", "<!-- License -->\n# Why", "Text"),
    "a heading in a comment": ("<!--\n# No\n-->\n## Why\nText\n", "<!--\n# No\n-->\n## Why", "Text"),
    "a heading in a code block": ("```\n# No\n```\n\n# Why\nText\n", "```\n# No\n```\n\n# Why", "Text"),
    "backticks that open no block": ("``` a ``` b\n\n# Why\nText\n", "``` a ``` b\n\n# Why", "Text"),
    "an underlined heading": ("Why\n===\n\n<!-- a -->\nText\n", "Why\n===\n\n<!-- a -->", "Text"),
    "a rule": ("- a\n---\n# Why\nText\n", "- a\n---\n# Why", "Text"),
    "two comments": ("# Why\n<!-- a -->\n<!-- b\nc -->\nText\n", "# Why\n<!-- a -->\n<!-- b\nc -->", "Text"),
    "a comment of its own": ("# Why\n<!-- a -->\n\n<!-- b -->\nText\n", "# Why\n<!-- a -->", "<!-- b -->"),
    "text behind a comment": ("# Why\n<!-- a\n--> Text\n", "# Why", "<!-- a\n--> Text"),
    "a comment without an end": ("# Why\n\n<!-- a\n\n## More\n", "# Why", "<!-- a\n\n## More"),
    "a comment without an end first": ("<!-- a\n# Why\n", "", "<!-- a\n# Why"),
    "a heading alone": ("# Why", "# Why", ""),
}


@pytest.mark.parametrize("name", PLACED)
def test_our_part_has_its_place_in_odd_templates(name: str) -> None:
    template, head, rest = PLACED[name]
    page = body(cases.ready(), template)
    assert page.startswith(f"{head}\n\n{PLACE}" if head else PLACE)
    assert page.split("beyond this program: " + PLACE)[1].startswith(f"\n\n{rest}" if rest else "\n")
    assert "## Evidence" in cases.headings(page)


@pytest.mark.parametrize("name", PLACED)
def test_carriage_returns_change_nothing(name: str) -> None:
    template, _, _ = PLACED[name]
    page = body(cases.ready(), template)
    for ending in ("\r\n", "\r"):
        assert body(cases.ready(), template.replace("\n", ending)) == page


def test_text_of_others_breaks_no_block_and_makes_no_heading() -> None:
    noisy = replace(cases.not_ready(), reasons=(cases.NASTY,))
    calm = replace(cases.not_ready(), reasons=("calm",))
    assert cases.headings(body(noisy)) == cases.headings(body(calm))
    assert "`@someone` `#12`" in body(noisy)


@pytest.mark.parametrize("name", cases.every_kind())
def test_the_documents_depend_on_the_evidence_alone(name: str) -> None:
    evidence = cases.every_kind()[name]
    for document in (body, siblings_markdown):
        page = document(evidence)
        assert page == document(cases.every_kind()[name]) == document(cases.turned(evidence))
        assert page.endswith("\n")
        assert not page.endswith("\n\n")


def test_the_body_of_a_long_series_is_folded_and_fits_a_pull_request() -> None:
    page = body(cases.large(100))
    assert set(cases.folds(page)) == {
        "100 commits",
        "100 classes before and after",
        "Regression tests of 100 families",
        "The commands of the tests",
        "Commands that look for the same work",
    }
    assert "\n100 passed.\n" in page
    assert len(page) < 65536


def test_siblings_are_one_table_with_the_places_and_the_reason_why_not() -> None:
    page = siblings_markdown(cases.ready())
    assert "1 family in this series, 1 not." in page
    (table,) = cases.tables(page)
    assert table == [
        ["family", "in this series", "rules", "places", "reason"],
        ["clvp", "yes", "CKPT002", "src/transformers/models/clvp/modeling_clvp.py:80", "changed in this series"],
        [
            "mllama",
            "no",
            "CKPT002 CKPT003",
            "src/transformers/models/mllama/modeling_mllama.py:7",
            "not asked for",
        ],
    ]
    assert "- CKPT002: An inline branch." in page
    assert "0 families in this series, 0 not." in siblings_markdown(cases.bare())
    assert not cases.tables(siblings_markdown(cases.bare()))


def test_those_of_the_series_come_first_and_many_siblings_are_folded() -> None:
    (ours, other) = cases.ready().siblings
    many = (*(replace(other, family=f"family{number}") for number in range(30)), ours)
    page = siblings_markdown(replace(cases.ready(), siblings=many))
    assert list(cases.folds(page)) == ["31 families"]
    assert [row[0] for row in cases.tables(page)[0][1:]] == ["clvp", *(one.family for one in many[:-1])]
