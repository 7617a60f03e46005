"""Hooks with which mkdocs renders the pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

RULES = Path(__file__).parent / "rules"


def on_config(config: Any) -> Any:
    """Add the page of every rule to the navigation."""
    with_rules(config["nav"])
    return config


def with_rules(navigation: list[Any]) -> list[Any]:
    """Append a page for each rule to the navigation, after the page that lists the rules."""
    (pages,) = (section["Rules"] for section in navigation if isinstance(section, dict) and "Rules" in section)
    for page in sorted(RULES.glob("CKPT*.md")):
        heading = page.read_text(encoding="utf-8").partition("\n# ")[2].partition("\n")[0]
        pages.append({heading: f"rules/{page.name}"})
    return navigation


def on_page_markdown(markdown: str, page: Any = None, **_: object) -> str:
    """Render `<details>` and pipes in tables' code as GitHub does, and give tables of coverage pages more room."""
    if page is not None and page.file.src_uri.startswith("coverage/"):
        page.meta["hide"] = ["toc"]
    markdown = markdown.replace("<details>", '<details markdown="1">')
    return re.sub(r"^\|.*$", lambda row: _with_plain_pipes(row[0]), markdown, flags=re.MULTILINE)


def _with_plain_pipes(row: str) -> str:
    """Unescape the pipes in the code of a table's row: Python-Markdown shows their backslashes, GitHub needs them."""
    return re.sub(r"`[^`]*`", lambda code: code[0].replace(r"\|", "|"), row)
