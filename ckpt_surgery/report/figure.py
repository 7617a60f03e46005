"""The look of every plot, and the small inline `<svg>` element it becomes. What is drawn is in `plots`.

matplotlib is imported when the first figure is made.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ckpt_surgery.errors import CkptSurgeryError
from ckpt_surgery.measure.results import MODES, Mode

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, FAILED = "#010101", "#020202", "#030303", "#040404"
MODE_INKS: dict[Mode, str] = {mode: f"#05{at:02x}05" for at, mode in enumerate(MODES, 1)}
CSS_COLOURS = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--line)",
    FAILED: "var(--failed)",
    **{ink: f"var(--mode-{at})" for at, ink in enumerate(MODE_INKS.values(), 1)},
}
"""The colours that matplotlib draws with, and the style properties of the page that replace them."""

STYLES: dict[Any, Any] = {
    "axes.edgecolor": GRID,
    "axes.grid": True,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 8.5,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "font.size": 8.5,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": GRID,
    "xtick.labelcolor": MUTED,
    "xtick.labelsize": 8,
    "ytick.color": GRID,
    "ytick.labelcolor": MUTED,
    "ytick.labelsize": 8,
}
_WIDTH = 4.7


class PlotError(CkptSurgeryError, ValueError):
    """The plots cannot be drawn here."""


def need_matplotlib() -> Any:
    """Return the matplotlib package. Raises PlotError if it cannot be imported."""
    try:
        import matplotlib
    except ImportError:
        raise PlotError(
            "The HTML report draws its plots with matplotlib, which is not installed: "
            "run `python -m pip install matplotlib`, or choose another output format."
        ) from None
    return matplotlib


def axes_of(height: float, left: float = 0.72) -> tuple[Figure, Axes]:
    """Make a figure of `height` inches with one pair of axes, which begin `left` inches from its left edge."""
    from matplotlib.figure import Figure

    height = max(height, 1.3)
    figure = Figure((_WIDTH, height))
    figure.patch.set_visible(False)
    axes = figure.add_axes((left / _WIDTH, 0.48 / height, 1 - (left + 0.2) / _WIDTH, 1 - 0.98 / height))
    axes.patch.set_visible(False)
    return figure, axes


def whole_numbers(axes: Axes) -> None:
    """Label the x axis with integers only."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True))


def add_legend(figure: Figure, columns: int) -> None:
    """Put a legend above the axes."""
    where: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 1.0)}
    figure.legend(**where, ncols=max(columns, 1), handlelength=1.4, columnspacing=1.4)


def svg_of(figure: Figure, key: str, title: str, text: str, titled: Mapping[str, Sequence[str]] | None = None) -> str:
    """Draw a figure as one inline `<svg>` element in the colours of the page.

    Args:
        figure: What is drawn.
        key: Starts every id; unique in the page.
        title: The title for screen readers.
        text: The description for screen readers.
        titled: The tooltips of the markers of a line, by the gid of the line.
    """
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    body = drawn.getvalue()
    (box,) = re.findall(r'<svg[^>]* viewBox="([^"]+)"', body)
    body = body[body.index(">", body.index("<svg")) + 1 : body.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style\b.*?</style>", "", body, flags=re.DOTALL)
    for gid, names in (titled or {}).items():
        end = body.index(f'<g id="{gid}">')
        for name in names:  # its markers are the first ones from there
            end = body.index("/>", body.index("<use ", end))
            body = f"{body[:end]}><title>{escape(name)}</title></use>{body[end + 2 :]}"
    body = re.sub(r"<[^>]+>", lambda tag: _tidy(tag[0], key), body)
    body = re.sub(r">\s+<", "><", body).strip()
    return (
        f'<svg viewBox="{box}" role="img" aria-labelledby="{key}-title {key}-text">'
        f'<title id="{key}-title">{escape(title)}</title><desc id="{key}-text">{escape(text)}</desc>{body}</svg>'
    )


def _tidy(tag: str, key: str) -> str:
    """Give a tag the colours of the page and ids that start with `key`; drop fonts and surplus digits."""
    for drawn, shown in CSS_COLOURS.items():
        tag = tag.replace(drawn, shown)
    tag = re.sub(r"font-family: [^;\"]*(?:; )?", "", tag)
    tag = re.sub(r"font: (?:[a-z]+ )*([\d.]+px)[^;\"]*", r"font-size: \1", tag)
    tag = re.sub(r"(\.\d\d)\d+", r"\1", tag).replace("xlink:href=", "href=")
    return re.sub(r'( id="|href="#|url\(#)', rf"\1{key}-", tag)
