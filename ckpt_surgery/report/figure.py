"""The look of every plot: colours that the page replaces, fonts, axes and legends. What is drawn is in `plots`.

matplotlib is imported when the first figure is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckpt_surgery.errors import CkptSurgeryError
from ckpt_surgery.measure.results import MODES, Mode
from ckpt_surgery.report.svg import inline_svg

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
    """The matplotlib package. Raises PlotError if it cannot be imported."""
    try:
        import matplotlib
    except ImportError:
        raise PlotError(
            "The HTML report draws its plots with matplotlib, which is not installed: "
            "run `python -m pip install matplotlib`, or choose another output format."
        ) from None
    return matplotlib


def axes_of(height: float, left: float = 0.72) -> tuple[Figure, Axes]:
    """A figure of `height` inches with one pair of axes, which begin `left` inches from its left edge."""
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
    """A legend above the axes."""
    anchor = (0.5, 1.0)
    figure.legend(
        loc="upper center", bbox_to_anchor=anchor, ncols=max(columns, 1), handlelength=1.4, columnspacing=1.4
    )


def svg_of(figure: Figure, key: str, title: str, text: str, titled: dict[str, list[str]] | None = None) -> str:
    """The figure as an inline `<svg>` element in the colours of the page."""
    return inline_svg(figure, key=key, title=title, text=text, colours=CSS_COLOURS, titled=titled or {})
