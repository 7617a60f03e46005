"""The place of our part in a pull request template, whatever the template looks like."""

from __future__ import annotations

import pytest

from ckpt_surgery.upstream.evidence.body import pull_request_body
from ckpt_surgery.upstream.evidence.placeholders import PLACEHOLDER
from ckpt_surgery.upstream.evidence.template import split_template
from tests.upstream.evidence import evidence_cases as cases

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
    page = pull_request_body(cases.ready(), template)
    assert page.startswith(f"{head}\n\n{PLACEHOLDER}" if head else PLACEHOLDER)
    assert page.split("beyond this program: " + PLACEHOLDER)[1].startswith(f"\n\n{rest}" if rest else "\n")
    assert "## Evidence" in cases.headings(page)


@pytest.mark.parametrize("name", PLACED)
def test_carriage_returns_change_nothing(name: str) -> None:
    template, _, _ = PLACED[name]
    page = pull_request_body(cases.ready(), template)
    for ending in ("\r\n", "\r"):
        assert pull_request_body(cases.ready(), template.replace("\n", ending)) == page


@pytest.mark.parametrize("name", PLACED)
def test_the_two_parts_are_the_template(name: str) -> None:
    template, head, rest = PLACED[name]
    assert split_template(template)[0] == head
    assert split_template(template)[1].startswith(rest)
