"""body.md keeps the template, ticks nothing and leaves the words to a human; siblings.md lists the rest."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ckpt_surgery.upstream.evidence.body import PLACEHOLDER, pull_request_body, split_template
from ckpt_surgery.upstream.evidence.page import siblings_markdown
from ckpt_surgery.upstream.evidence.results import Evidence, Reason, ReasonCode
from tests.upstream.evidence import evidence_cases as cases

ASKED = [
    "<!-- What changes and why",
    "Why this is not a duplicate:",
    "Which lines I reviewed",
    "Which assistance I used",
]


def body(evidence: Evidence, template: str = cases.TEMPLATE) -> str:
    return pull_request_body(evidence, template)


def test_the_template_is_kept_whole_around_the_facts() -> None:
    page = body(cases.ready())
    head, rest = cases.TEMPLATE.split("\n\n<!-- Leave out", 1)
    unticked = re.sub(r"\[[xX]\](?=[ ]([AaNq]|and))", "[ ]", rest)
    assert page.startswith(f"{head}\n\n{PLACEHOLDER}\n")
    assert page.endswith(f"\n\n<!-- Leave out{unticked}")
    assert "Fixes # (issue)" in page


def test_no_box_is_ticked_and_none_is_lost() -> None:
    page = body(cases.ready())
    boxes = re.findall(r"^[ >]*(?:[-*]|\d+\.) \[(.)\] ", page, re.MULTILINE)
    assert boxes == [" "] * 5
    assert "- [x](https://example.org) is a link" in page
    assert "- the array [x] is no box" in page
    assert len(re.findall(r"^[ >]*(?:[-*]|\d+\.) \[[xX]\] ", cases.TEMPLATE, re.MULTILINE)) == 4


def test_the_human_has_four_places_and_they_are_where_they_should_be() -> None:
    page = body(cases.ready())
    lines = page.splitlines()
    places = [at for at, line in enumerate(lines) if PLACEHOLDER in line]
    assert len(places) == page.count(PLACEHOLDER) == 4
    assert lines[places[0]] == PLACEHOLDER
    assert lines[places[0] - 2] == "-->"
    assert lines[places[0] + 1].startswith(ASKED[0])
    assert [lines[at].startswith(asked) for at, asked in zip(places[1:], ASKED[1:], strict=True)] == [True] * 3
    assert places[0] < lines.index("## Evidence") < lines.index("### Disclosure") < places[1] < lines.index("## Rules")


def test_without_an_issue_the_body_stops_after_the_facts_and_says_why() -> None:
    page = body(cases.uncoordinated())
    assert cases.headings(page)[-1] == "### Disclosure"
    for left_out in ("Fixes #", "[ ]", "Rules", "Who reads it?", "duplicate", "gh pr"):
        assert left_out not in page
    last = page.rstrip().splitlines()[-1]
    assert "`--coordination`" in last
    assert page.count(PLACEHOLDER) == 1
    assert last not in body(cases.ready())


def test_without_a_template_our_part_is_all() -> None:
    page = body(cases.ready(), "")
    assert page.startswith(f"{PLACEHOLDER}\n")
    assert page.endswith(f"beyond this program: {PLACEHOLDER}\n")


def test_text_of_others_breaks_no_block_and_makes_no_heading() -> None:
    noisy = replace(cases.not_ready(), reasons=(Reason(ReasonCode.CHECKER_FAILED, cases.NASTY),))
    calm = replace(cases.not_ready(), reasons=(Reason(ReasonCode.CHECKER_FAILED, "calm"),))
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


PLACED = {
    "no heading": ("Tell us.\n\n- [ ] done\n", "", "Tell us.\n\n- [ ] done"),
    "a comment before the heading": ("<!-- License -->\n# Why\n\nText\n", "<!-- License -->\n# Why", "Text"),
    "a comment of its own": ("# Why\n<!-- a -->\n\n<!-- b -->\nText\n", "# Why\n<!-- a -->", "<!-- b -->\nText"),
    "text behind a comment": ("# Why\n<!-- a\n--> Text <!-- b -->\n", "# Why", "<!-- a\n--> Text <!-- b -->"),
    "a comment without an end": ("# Why\n\n<!-- a\n\n## More\n", "# Why", "<!-- a\n\n## More"),
    "a heading alone": ("# Why", "# Why", ""),
}


@pytest.mark.parametrize("name", PLACED)
def test_our_part_comes_below_the_first_heading_and_its_comment(name: str) -> None:
    template, head, rest = PLACED[name]
    assert split_template(template) == split_template(template.replace("\n", "\r\n")) == (head, rest)
    page = body(cases.ready(), template)
    assert page.startswith(f"{head}\n\n{PLACEHOLDER}" if head else PLACEHOLDER)
    assert page.split("beyond this program: " + PLACEHOLDER)[1].strip() == rest
