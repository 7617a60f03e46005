"""Pieces of Markdown, as GitHub shows it: tables, names as code, sentences, fenced blocks, folds.

What is said in them is for the pages that use them; whatever text comes in, it stays text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

# an underscore between letters is no markup
_MARKUP = re.compile(r"[\\`*<>\[\]&~]|(?<![^\W_])_|_(?![^\W_])")
_ADDRESSED = re.compile(r"(?<!\w)[@#]\w(?:[\w./-]*\w)?")
_BLOCK_START = re.compile(r"^(?:[-+#]+|\d+(?=[.)]))(?=[.)]?(?:\s|$))")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table. Its cells are Markdown of one line."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def code(text: str) -> str:
    """A name as code on one line. A backtick becomes a quote: what has to be exact stands in a fenced block."""
    return f"`{_line(text).replace('`', chr(39))}`"


def prose(text: str) -> str:
    """A sentence on one line: what stands between two single backticks stays code, all else is plain.

    Nobody is called and no issue is linked: `@name` and `#12` become code.
    """
    line = _line(text)
    pieces = line.split("`")
    if len(pieces) % 2 == 0 or "``" in line:
        pieces = [line]
    said = "".join(code(piece) if at % 2 else _plain(piece) for at, piece in enumerate(pieces))
    return _BLOCK_START.sub(lambda found: _guarded(found[0]), said)


def bullets(items: Iterable[str]) -> str:
    """A list of items that are Markdown of one line each."""
    return "\n".join(f"- {item}" for item in items)


def fenced(text: str, language: str = "") -> str:
    """A block that shows `text` as it is: its fence is longer than any run of backticks inside."""
    fence = "`" * max(3, 1 + _longest_run(text))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def folded(summary: str, body: str) -> str:
    """A part that opens on a click. The summary is plain text, the body Markdown."""
    return f"<details>\n<summary>{html.escape(summary, quote=False)}</summary>\n\n{body}\n\n</details>"


def _plain(text: str) -> str:
    """Text without markup; the names and numbers that GitHub would act on are code."""
    pieces = []
    end = 0
    for found in _ADDRESSED.finditer(text):
        pieces += [_escaped(text[end : found.start()]), code(found[0])]
        end = found.end()
    return "".join([*pieces, _escaped(text[end:])])


def _escaped(text: str) -> str:
    return _MARKUP.sub(lambda found: f"\\{found[0]}", text)


def _guarded(start: str) -> str:
    """The start of a line that would make it a heading, a list or a rule."""
    return f"{start}\\" if start.isdigit() else f"\\{start}"


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def _line(text: str) -> str:
    return " ".join(text.split())
