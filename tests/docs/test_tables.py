"""The tables of the site in a real browser: long ones can be filtered, and no column is cut off."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from docs.hooks import on_page_markdown
from tests.docs.commands import ROOT
from tests.report.browser import running_browser

SHOWN = "return [...document.querySelectorAll('tbody tr')].filter(row => !row.hidden).length"
TYPE = "const field = document.querySelector('.table-filter'); field.value = arguments[0];"


def test_a_long_table_is_filtered_by_words_and_fits_the_page(tmp_path: Path) -> None:
    rows = "".join(
        f"<tr><td>Class{at}</td><td><code>{'a_long_name.' * 12}{at % 7}</code></td></tr>" for at in range(40)
    )
    table = f"<table><thead><tr><th>class<th>what</thead><tbody>{rows}</tbody></table>"
    assets = ROOT / "docs" / "assets"
    style, script = ((assets / name).read_text(encoding="utf-8") for name in ("tables.css", "tables.js"))
    page = f'<style>{style}</style><article class="md-typeset" style="width: 600px">{table}</article>'
    (tmp_path / "page.html").write_text(f"<!doctype html><meta charset=utf-8>{page}<script>{script}</script>")
    with running_browser() as browser:
        browser.open(tmp_path / "page.html")
        assert browser.run("return document.querySelector('table').scrollWidth") <= 600
        counts = []
        for words in ("", "CLASS1 ", "class1 name.3", "nothing"):
            browser.run(f"{TYPE} field.dispatchEvent(new Event('input'))", words)
            counts.append(browser.run(SHOWN))
        assert counts == [40, 11, 2, 0]
        assert browser.messages() == []


def test_coverage_pages_have_the_whole_width() -> None:
    pages = [SimpleNamespace(meta={}, file=SimpleNamespace(src_uri=uri)) for uri in ("coverage/a.md", "limits.md")]
    assert [on_page_markdown("<details>", page) for page in pages] == ['<details markdown="1">'] * 2
    assert [page.meta for page in pages] == [{"hide": ["toc"]}, {}]


def test_pipes_in_the_code_of_a_table_lose_their_backslash() -> None:
    outside = "`a\\|b`\n"
    assert on_page_markdown(outside + r"| `<\|a\|>` | b \| c |") == outside + r"| `<|a|>` | b \| c |"
