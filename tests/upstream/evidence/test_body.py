"""body.md keeps the template, ticks nothing and leaves the words to a human, and the next commands wait for them.

The documents as a whole are in the snapshots of test_documents.py.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ckpt_surgery.upstream.evidence.body import MARK, PLACEHOLDER, next_commands, pull_request_body, split_template
from ckpt_surgery.upstream.evidence.page import evidence_markdown
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


def test_text_of_others_breaks_no_block_and_makes_no_heading() -> None:
    noisy = replace(cases.not_ready(), reasons=(Reason(ReasonCode.CHECKER_FAILED, cases.NASTY),))
    calm = replace(cases.not_ready(), reasons=(Reason(ReasonCode.CHECKER_FAILED, "calm"),))
    for document in (body, evidence_markdown):
        assert cases.headings(document(noisy)) == cases.headings(document(calm))
    assert "`@someone` `#12`" in body(noisy)
    page = evidence_markdown(noisy)
    assert sum(cases.NASTY in block for block in cases.fences(page)) == 3
    assert page.count("\n<details>\n") == page.count("\n</details>\n")


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
}


@pytest.mark.parametrize("name", PLACED)
def test_our_part_comes_below_the_first_heading_and_its_comment(name: str) -> None:
    template, head, rest = PLACED[name]
    assert split_template(template) == split_template(template.replace("\n", "\r\n")) == (head, rest)
    page = body(cases.ready(), template)
    assert page.startswith(f"{head}\n\n{PLACEHOLDER}" if head else PLACEHOLDER)
    assert page.split("beyond this program: " + PLACEHOLDER)[1].strip() == rest


@pytest.mark.parametrize("name", cases.every_kind())
def test_upstreams_own_rules_come_first_and_break_no_shell(name: str) -> None:
    first, *_ = shown = next_commands(cases.every_kind()[name], Path("/out/it's here"), Path("/a space/checkout"))
    assert first.startswith("# Read CONTRIBUTING.md of transformers first")
    script = "\n".join(shown)
    assert subprocess.run(["bash", "-n", "-c", script], capture_output=True, check=False).stderr == b""


@pytest.mark.parametrize("written", [True, False])
def test_the_draft_is_refused_while_a_place_is_empty(tmp_path: Path, written: bool) -> None:
    page = pull_request_body(cases.ready(), "")
    (tmp_path / "body.md").write_text(page.replace(MARK, "") if written else page)
    (tmp_path / "gh").write_text("#!/bin/sh\necho opened\n")
    (tmp_path / "gh").chmod(0o755)
    last = next_commands(cases.ready(), tmp_path, tmp_path / "checkout")[-1]
    path = f"{tmp_path}:{os.environ['PATH']}"
    ran = subprocess.run(["bash", "-c", last], env={"PATH": path}, capture_output=True, text=True, check=False)
    assert (ran.returncode == 0) == written == ("opened" in ran.stdout)
    assert ("TO BE WRITTEN BY YOU" in ran.stdout) != written
