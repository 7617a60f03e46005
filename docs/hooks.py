"""What mkdocs needs to be told about our pages."""

from __future__ import annotations


def on_page_markdown(markdown: str, **_: object) -> str:
    """Render the Markdown inside folded parts; GitHub does so without being told."""
    return markdown.replace("<details>", '<details markdown="1">')
