"""Hooks with which mkdocs renders the pages."""

from __future__ import annotations

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
    """Render the Markdown inside `<details>`, as GitHub does, and give the tables of coverage pages more room."""
    if page is not None and page.file.src_uri.startswith("coverage/"):
        page.meta["hide"] = ["toc"]
    return markdown.replace("<details>", '<details markdown="1">')
