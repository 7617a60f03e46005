"""A matplotlib figure as a small inline `<svg>` element: named colours, unique ids, tooltips.

What is drawn is decided in `plots`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def inline_svg(
    figure: Figure,
    *,
    key: str,
    title: str,
    text: str,
    colours: Mapping[str, str],
    titled: Mapping[str, Sequence[str]],
) -> str:
    """The figure as one element with a title and a description for screen readers.

    `key`, unique in the page, starts every id. `colours` maps the hexadecimal colours of the drawing to those of the
    page. `titled` maps the gid of a line to the tooltips of its markers.
    """
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    body = drawn.getvalue()
    (box,) = re.findall(r'<svg[^>]* viewBox="([^"]+)"', body)
    body = body[body.index(">", body.index("<svg")) + 1 : body.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style\b.*?</style>", "", body, flags=re.DOTALL)
    for gid, names in titled.items():
        body = _with_titles(body, gid, names)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', body))
    body = re.sub(r"<[^>]+>", lambda tag: _with_unique_ids(_tidy(tag[0], colours), key, used), body)
    body = re.sub(r">\s+<", "><", body).strip()
    return (
        f'<svg viewBox="{box}" role="img" aria-labelledby="{key}-title {key}-text">'
        f'<title id="{key}-title">{escape(title)}</title><desc id="{key}-text">{escape(text)}</desc>{body}</svg>'
    )


def _tidy(tag: str, colours: Mapping[str, str]) -> str:
    """A tag with the colours of the page, without a font, and with no more digits than a screen shows."""
    for drawn, shown in colours.items():
        tag = tag.replace(drawn, shown)
    tag = re.sub(r"font-family: [^;\"]*(?:; )?", "", tag)
    tag = re.sub(r"font: (?:[a-z]+ )*([\d.]+px)[^;\"]*", r"font-size: \1", tag)
    tag = re.sub(r"(\.\d\d)\d+", r"\1", tag)
    return tag.replace("xlink:href=", "href=")


def _with_titles(body: str, gid: str, names: Sequence[str]) -> str:
    """The drawing with a `<title>` in each marker of the line `gid`; unchanged if their numbers differ."""
    start = body.find(f'<g id="{gid}">')
    if start < 0:
        return body
    depth = 0
    for tag in re.finditer(r"<g\b|</g>", body[start:]):
        depth += 1 if tag[0] == "<g" else -1
        if depth == 0:
            break
    end = start + tag.end()
    markers = len(re.findall(r"<use\b[^>]*/>", body[start:end]))
    if markers != len(names):
        return body
    left: Iterator[str] = iter(names)
    group = re.sub(
        r"<use\b([^>]*)/>", lambda m: f"<use{m[1]}><title>{escape(next(left))}</title></use>", body[start:end]
    )
    return body[:start] + group + body[end:]


def _with_unique_ids(tag: str, key: str, used: set[str]) -> str:
    """A tag whose id and references start with `key`; an id without references is removed."""
    tag = re.sub(r' id="([^"]*)"', lambda m: f' id="{key}-{m[1]}"' if m[1] in used else "", tag)
    return re.sub(r'(href="|url\()#', rf"\1#{key}-", tag)
