"""Any text in Markdown reads as that text, without formatting."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from ckpt_surgery.text import bullets, code, fenced, folded, markdown_table, prose

NASTY = [
    "*a* _b_ **c** ~~d~~ [e](f) ![g](h) <b> &amp; \\* a|b",
    "# no heading",
    "- no list",
    "--- ",
    "> no quote",
    "<!-- no comment -->",
    "</details> <script>",
    "one ` backtick",
    "a ``b`` c",
    "line\nafter\n\n# line",
    "ends in \\",
]


def html(page: str) -> str:
    return str(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(page))


def seen(page: str) -> str:
    """Render a page of only one paragraph, list item or cell, and return its text."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(page)
    (inline,) = (token for token in tokens if token.type == "inline")
    kinds = {child.type for child in inline.children or []}
    assert kinds <= {"text", "text_special", "code_inline"}, kinds
    return "".join(child.content for child in inline.children or [])


@pytest.mark.parametrize("text", NASTY)
def test_a_sentence_stays_text_alone_in_a_list_and_in_a_cell(text: str) -> None:
    expected = " ".join(text.split())
    assert seen(prose(text)) == expected
    assert seen(bullets([prose(text)])) == expected
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown_table(["x", "y"], [["", prose(text)]]))
    cells = [token for token in tokens if token.type == "inline"]
    assert "".join(child.content for child in cells[3].children or []) == expected


@pytest.mark.parametrize("text", NASTY)
def test_without_care_the_same_text_would_be_markup(text: str) -> None:
    fine_alone = {"ends in \\", "one ` backtick"}
    assert (html(text) == f"<p>{' '.join(text.split())}</p>\n") == (text in fine_alone)


def test_code_in_a_sentence_stays_code() -> None:
    assert html(prose("The `a_b|*c*` is *gone*")) == "<p>The <code>a_b|*c*</code> is *gone*</p>\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ask @someone, now", "ask `@someone`, now"),
        ("see #12.", "see `#12`."),
        ("@org/team", "`@org/team`"),
        ("mail a@b and C#7", "mail a@b and C#7"),
        ("a # comment", "a # comment"),
        ("https://x.org/issues/1#note-2", "https://x.org/issues/1#note-2"),
    ],
)
def test_no_user_is_mentioned_and_no_issue_is_linked(text: str, shown: str) -> None:
    assert prose(text) == shown


@pytest.mark.parametrize("name", ["a|b", "a\\", "a\\|b", "_x_", "<b>", "a`b"])
def test_a_name_is_the_same_as_code_in_a_cell(name: str) -> None:
    shown = html(markdown_table(["x"], [[code(name)]]))
    expected = name.replace("`", "'").replace("<", "&lt;").replace(">", "&gt;")
    assert f"<td><code>{expected}</code></td>" in shown


@pytest.mark.parametrize("text", ["`", "```", "a\n````\nb", "~~~\n</details>\n```` ```````"])
def test_a_block_holds_what_it_is_given(text: str) -> None:
    (block,) = MarkdownIt("commonmark").parse(fenced(text, "console"))
    assert (block.type, block.content, block.info) == ("fence", f"{text}\n", "console")


def test_a_fence_that_is_too_short_would_end_early() -> None:
    assert len(MarkdownIt("commonmark").parse("```\na\n````\nb\n```")) > 1


def test_a_fold_holds_markdown_behind_a_plain_summary() -> None:
    shown = html(folded("a < b & c", "- *x*"))
    assert "<summary>a &lt; b &amp; c</summary>" in shown
    assert "<li><em>x</em></li>" in shown
    assert shown.strip().endswith("</details>")
