"""body.md keeps the template, ticks nothing and leaves the words to a human; siblings.md lists what is elsewhere."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ckpt_surgery.upstream.body import HUMAN_PLACE, pull_request_body, siblings_markdown
from ckpt_surgery.upstream.results import Evidence
from tests.upstream import evidence_cases as cases

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
    assert page.startswith(f"{head}\n\n{HUMAN_PLACE}\n")
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
    assert len(found) == page.count(HUMAN_PLACE) == 4
    assert lines[found[0]] == HUMAN_PLACE
    assert lines[found[0] - 2] == "-->"
    assert lines[found[0] + 1].startswith(ASKED[0])
    assert [lines[at].startswith(asked) for at, asked in zip(found[1:], ASKED[1:], strict=True)] == [True] * 3
    assert found[0] < lines.index("## Evidence") < lines.index("### Disclosure") < found[1] < lines.index("## Rules")


def test_the_headings_are_those_of_the_template_with_ours_between() -> None:
    assert cases.headings(body(cases.ready())) == [
        "# What is this?",
        "## Evidence",
        "### Commits",
        "### Before and after",
        "### Breaking changes",
        "### Regression tests",
        "### Upstream's checkers and tests",
        "### Slow tests",
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


def test_a_series_that_is_not_ready_says_so_before_anything_else() -> None:
    page = body(cases.not_ready())
    assert page.splitlines()[0].startswith("> **Not ready**: not to be opened as a pull request")
    assert "- The checker `copies` fails." in page
    assert not body(cases.ready()).startswith(">")
    assert "**Status: unchecked**" in body(cases.unchecked())


def test_a_class_has_one_line_and_equal_modes_share_a_cell() -> None:
    page = body(cases.ready())
    (lines,) = (table[1:] for table in cases.tables(page) if table[0][0] == "class")
    assert lines == [
        ["ClvpEncoder", "recompute, cost", "ok", "3.0 MiB -> 200 KiB", "repaired"],
        ["Zamba2ForCausalLM", "recompute, cost", "ok", "3.0 MiB -> 200 KiB", "repaired"],
    ]


def test_modes_that_differ_are_told_apart() -> None:
    page = body(cases.not_ready())
    (lines,) = (table[1:] for table in cases.tables(page) if table[0][0] == "class")
    assert lines == [
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
    assert "Faults that remain:" in page
    assert "Faults that remain:" not in body(cases.ready())


def test_the_facts_have_tests_checkers_and_the_commands() -> None:
    evidence = cases.ready()
    page = body(evidence)
    for run in (ran for test in evidence.regressions for ran in (test.before, test.after) if ran):
        assert f"$ {run.command}\n" in page
    assert ["copies", "ok", "python utils/checkers.py copies", ""] in [row for t in cases.tables(page) for row in t]
    assert f"{evidence.run_slow}\n" in cases.fences(page)
    assert "| failed | passed |" in page
    assert evidence.signatures[0].callers[0] in page


def test_it_is_disclosed_what_made_the_series_and_with_what_command() -> None:
    for evidence in (cases.ready(), cases.uncoordinated()):
        page = body(evidence)
        assert "Made with `ckpt_surgery 0.1.0`, a program" in page
        assert f"$ {evidence.command}\n" in cases.fences(page)
    assert f"Agreed on in: {cases.ISSUE}" in body(cases.ready())


def test_without_a_template_the_headings_are_ours_and_it_is_said() -> None:
    for template in (None, "", " \n\n"):
        page = body(cases.ready(), template)
        assert page.startswith("# What this changes, and why\n\n<!-- This checkout has no pull request template")
        assert cases.headings(page)[-1] == "## For the reviewers"
        assert "Fixes # (issue)" in page
        assert page.count(HUMAN_PLACE) == 5
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
    assert page.startswith(f"{head}\n\n{HUMAN_PLACE}" if head else HUMAN_PLACE)
    assert page.split("beyond this program: " + HUMAN_PLACE)[1].startswith(f"\n\n{rest}" if rest else "\n")
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
    assert "<summary>100 classes</summary>" in page
    assert "<summary>Commands that look for the same work</summary>" in page
    assert len(page) < 65536


def test_siblings_are_listed_with_the_places_and_the_reason_why_not() -> None:
    page = siblings_markdown(cases.ready())
    assert "1 family in this series, 1 not." in page
    ours, others = cases.tables(page)
    assert ours[1:] == [["clvp", "CKPT002", "1", ""]]
    assert others[1:] == [["mllama", "CKPT002 CKPT003", "1", "It was not asked for."]]
    assert "- `mllama`: `src/transformers/models/mllama/modeling_mllama.py:7`" in page
    assert "- CKPT002: An inline branch." in page
    assert siblings_markdown(cases.empty()).count("\nNone.\n") == 2


def test_many_siblings_are_folded() -> None:
    (_, other) = cases.ready().siblings
    many = tuple(replace(other, family=f"family{number}") for number in range(30))
    page = siblings_markdown(replace(cases.ready(), siblings=many))
    assert "<summary>30 families</summary>" in page
    assert [row[0] for row in cases.tables(page)[0][1:]] == [one.family for one in many]
