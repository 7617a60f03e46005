"""Draw the plots of one report as inline SVG: bytes over a step, recomputes of blocks, errors of gradients.

The page is in `html`. matplotlib is imported when the first figure is made.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ckpt_surgery.errors import CkptSurgeryError
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import MODES, Mode, ModeReport, Timeline
from ckpt_surgery.report.summary import BlockRow, error_text
from ckpt_surgery.text import plural, size, size_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, FAILED = "#010101", "#020202", "#030303", "#040404"
MODE_INKS: dict[Mode, str] = {mode: f"#05{number:02x}05" for number, mode in enumerate(MODES, 1)}
CSS_COLOURS = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--line)",
    FAILED: "var(--failed)",
    **{ink: f"var(--mode-{number})" for number, ink in enumerate(MODE_INKS.values(), 1)},
}
"""The placeholder colours that matplotlib draws with, and the style properties of the page that replace them."""

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
_DASHES: dict[Mode, Any] = {"non_reentrant": "-", "reentrant": (0, (4, 2))}
_MARKERS: dict[Mode, str] = {"non_reentrant": "o", "reentrant": "s"}
_WRONG_MARKERS: dict[Mode, str] = {"non_reentrant": "x", "reentrant": "+"}
_MOST_ROWS = 24  # of blocks, from which on equal ones share a row
_MOST_POINTS = 400  # marks per mode


class PlotError(CkptSurgeryError, ValueError):
    """The plots cannot be drawn here."""


@dataclass(frozen=True, slots=True)
class Plot:
    """One drawing: its title, a caption on how to read it, and the `<svg>` element."""

    title: str
    caption: str
    svg: str

    @classmethod
    def of(cls, report: Report, *, key: str) -> list[Plot]:
        """Draw the plots for which the report has data: bytes held, recomputes of blocks, errors of gradients.

        `key`, unique in the page, makes the ids in the drawings unique. The same report and key give the same text.

        Raises:
            PlotError: matplotlib is not installed.
        """
        with need_matplotlib().rc_context({**STYLES, "svg.hashsalt": key}):
            plots = (_bytes_plot(report, f"{key}-bytes"), _blocks_plot(report, f"{key}-blocks"))
            return [plot for plot in (*plots, _errors_plot(report, f"{key}-errors")) if plot]


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


def _bytes_plot(report: Report, key: str) -> Plot | None:
    """Draw the bytes held over operators run, for the reference and every mode, with the start of each backward."""
    lines: list[tuple[str, Timeline, str, Any]] = []
    if report.reference and report.reference.points:
        lines.append(("without", report.reference, MUTED, "-"))
    lines += [
        (run.mode, run.timeline, MODE_INKS[run.mode], _DASHES[run.mode])
        for run in report.modes
        if run.timeline and run.timeline.points
    ]
    if not lines:
        return None
    unit, divisor = size_unit(max(held for _, line, _, _ in lines for _, held in line.points))
    figure, axes = _axes_of(2.7)
    for index, (name, line, colour, dash) in enumerate(lines):
        x, y = [point[0] for point in line.points], [point[1] / divisor for point in line.points]
        axes.plot(x, y, drawstyle="steps-post", color=colour, linestyle=dash, linewidth=1.5, label=name)
        if name == "without":
            axes.fill_between(x, y, step="post", color=colour, alpha=0.12, linewidth=0)
        if line.backward not in {other.backward for _, other, _, _ in lines[:index]}:
            axes.axvline(line.backward, color=colour if index else INK, linewidth=0.8, linestyle=(0, (2, 2)))
    axes.set(xlabel="operators run so far", ylabel=f"held ({unit})")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    boundary = lines[0][1].backward
    for text, side, away in (("forward", "right", -4), ("backward", "left", 4)):
        at_top = (boundary, 1.0)
        axes.annotate(
            text, at_top, (away, 2), axes.get_xaxis_transform(), "offset points", ha=side, color=MUTED, fontsize=8
        )
    _add_legend(figure, len(lines))
    peaks = ", ".join(f"{name} {size(max(held for _, held in line.points))}" for name, line, _, _ in lines)
    caption = "All tensors that the step makes: activations, and in the backward, from the dotted line on, gradients. "
    return _plot_of(figure, key, "Bytes held over one step", f"{caption}Peaks: {peaks}.", f"Peaks: {peaks}.")


def _blocks_plot(report: Report, key: str) -> Plot | None:
    """Draw a bar of recomputes for each block and mode, with a mark where it should end."""
    rows = BlockRow.of(report, _MOST_ROWS)[: 2 * _MOST_ROWS]
    if not rows:
        return None
    modes = [run.mode for run in report.modes if run.blocks]
    labels = [row.name if row.blocks == 1 else f"{row.name} ({row.blocks})" for row in rows]
    # long names without their middle: the end says most
    labels = [label if len(label) <= 26 else f"{label[:8]}\u2026{label[-17:]}" for label in labels]
    figure, axes = _axes_of(0.75 + (0.13 + 0.13 * len(modes)) * len(rows), left=0.2 + 0.063 * max(map(len, labels)))
    height = 0.72 / len(modes)
    for index, mode in enumerate(modes):
        offset = (index - (len(modes) - 1) / 2) * height
        bars = [(y + offset, dict(row.recomputed).get(mode), row.reference) for y, row in enumerate(rows)]
        seen = [(y, count, expected) for y, count, expected in bars if count is not None]
        axes.barh([y for y, _, _ in seen], [n for _, n, _ in seen], height * 0.86, color=MODE_INKS[mode], label=mode)
        for y, count, expected in seen:
            if count != expected:
                axes.text(count, y - 0.02, f" \u2715 {count}", va="center_baseline", color=FAILED, fontsize=8)
    ends = [row.reference for row in rows]
    axes.vlines(ends, [y - 0.44 for y in range(len(rows))], [y + 0.44 for y in range(len(rows))], color=INK, lw=1.6)
    axes.set_yticks(range(len(rows)), labels)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, max(*ends, *(count for row in rows for _, count in row.recomputed)) * 1.15 + 0.25)
    _whole_numbers(axes)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("times entered in the backward")
    _add_legend(figure, len(modes))
    wrong = sum(row.blocks for row in rows if any(count != row.reference for _, count in row.recomputed))
    caption = "The upright stroke is how often the forward enters a block; a bar that ends there is right."
    text = f"{plural(wrong, 'block')} recomputed too seldom or too often."
    return _plot_of(figure, key, "Recomputes of each block", caption, text)


def _errors_plot(report: Report, key: str) -> Plot | None:
    """Draw a mark for each parameter and mode on a logarithmic scale, with lines for errors that do not fit on it."""
    by_run = [(run, run_errors) for run in report.modes if (run_errors := run.gradient_errors)]
    errors = [error for _, run_errors in by_run for error in run_errors.values()]
    if not any(error != 0 for error in errors):
        return None
    unique = dict.fromkeys(name for _, run_errors in by_run for name in run_errors)
    names = {name: number for number, name in enumerate(unique, 1)}
    finite = [abs(error) for error in errors if error and math.isfinite(error)]
    low = math.floor(math.log10(min(finite, default=1e-8))) - 1
    high = max(math.ceil(math.log10(max(finite, default=1e-5))), low + 3) + 1
    figure, axes = _axes_of(2.7, left=1.05)
    tooltips: dict[str, list[str]] = {}
    for run, run_errors in by_run:
        tooltips |= _points(axes, run, run_errors, names, (low, high))
    decades = [power for power in range(low + 1, high) if (power - high + 1) % max(1, (high - low) // 6) == 0]
    top = {high: "not finite"} if any(error is not None and not math.isfinite(error) for error in errors) else {}
    top |= {high + 1: "one run only"} if None in errors else {}
    axes.set_yticks([low, *decades, *top], ["equal", *(f"1e{power}" for power in decades), *top.values()])
    axes.set_ylim(low - 0.3, max(top, default=high - 0.3) + 0.3)
    axes.set_xlim(0, len(names) + 1)
    _whole_numbers(axes)
    axes.set(xlabel="parameter, in the order of the model", ylabel="relative error")
    axes.grid(axis="x", visible=False)
    _add_legend(figure, len(tooltips))
    text = f"The largest finite error is {max(finite, default=0.0):.1e}."
    thinned = " Of neighbours only the worst is shown." if len(names) > _MOST_POINTS else ""
    caption = (
        "Against the run without checkpointing; what is equal up to rounding lies on the lowest line. "
        f"Point at a mark for its name.{thinned}"
    )
    return _plot_of(figure, key, "Relative error of each gradient", caption, text, tooltips)


def _points(
    axes: Axes, run: ModeReport, errors: Mapping[str, float | None], x_of: Mapping[str, int], ends: tuple[int, int]
) -> dict[str, list[str]]:
    """Draw the marks of one mode, those of faults apart; return the tooltips of the marks by the gid of their line."""
    wrong = {name for fault in run.faults if fault.level in ("set", "values") for name in fault.subjects}
    marker = _MARKERS[run.mode]
    looks: tuple[tuple[str, Set[str], dict[str, Any]], ...] = (
        (run.mode, errors.keys() - wrong, {"marker": marker, "color": MODE_INKS[run.mode], "ms": 3.6, "mew": 0.9}),
        (
            f"{run.mode}, wrong",
            errors.keys() & wrong,
            {"marker": _WRONG_MARKERS[run.mode], "color": FAILED, "ms": 5.5, "mew": 1.5},
        ),
    )
    tooltips: dict[str, list[str]] = {}
    for label, chosen, look in looks:
        if not chosen:
            continue
        names = sorted(chosen, key=x_of.__getitem__)
        per_mark = -(-len(names) // _MOST_POINTS)  # of so many neighbours, the one with the largest error is shown
        heights = {name: _height(errors[name], -400, 400) for name in names}
        starts = range(0, len(names), per_mark)
        shown = [max(names[start : start + per_mark], key=heights.__getitem__) for start in starts]
        gid = f"points-{label.replace(', ', '-')}"
        x, y = [x_of[name] for name in shown], [_height(errors[name], *ends) for name in shown]
        face = "none" if marker == "s" else look["color"]
        axes.plot(x, y, linestyle="none", mfc=face, label=label, gid=gid, clip_on=False, **look)
        tooltips[gid] = [f"{name}: {error_text(errors[name])}" for name in shown]
    return tooltips


def _height(error: float | None, low: int, high: int) -> float:
    if error is None:
        return high + 1
    if error == 0:
        return low
    return math.log10(abs(error)) if math.isfinite(error) else high


def _axes_of(height: float, left: float = 0.72) -> tuple[Figure, Axes]:
    """Make a figure of `height` inches with one pair of axes, which begin `left` inches from its left edge."""
    from matplotlib.figure import Figure

    height = max(height, 1.3)
    figure = Figure((_WIDTH, height))
    figure.patch.set_visible(False)
    axes = figure.add_axes((left / _WIDTH, 0.48 / height, 1 - (left + 0.2) / _WIDTH, 1 - 0.98 / height))
    axes.patch.set_visible(False)
    return figure, axes


def _whole_numbers(axes: Axes) -> None:
    """Label the x axis with integers only."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True))


def _add_legend(figure: Figure, columns: int) -> None:
    """Put a legend above the axes."""
    where: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 1.0)}
    figure.legend(**where, ncols=max(columns, 1), handlelength=1.4, columnspacing=1.4)


def _plot_of(
    figure: Figure,
    key: str,
    title: str,
    caption: str,
    text: str,
    tooltips: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Plot:
    """Draw a figure as one inline `<svg>` element in the colours of the page, whose ids start with `key`.

    `text` describes it to screen readers; `tooltips` are those of the markers of a line, by the gid of the line.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    body = buffer.getvalue()
    (box,) = re.findall(r'<svg[^>]* viewBox="([^"]+)"', body)
    body = body[body.index(">", body.index("<svg")) + 1 : body.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style\b.*?</style>", "", body, flags=re.DOTALL)
    for gid, names in tooltips.items():
        end = body.index(f'<g id="{gid}">')
        for name in names:  # its markers are the first ones from there
            end = body.index("/>", body.index("<use ", end))
            body = f"{body[:end]}><title>{escape(name)}</title></use>{body[end + 2 :]}"
    body = re.sub(r"<[^>]+>", lambda tag: _tidy(tag[0], key), body)
    body = re.sub(r">\s+<", "><", body).strip()
    svg = (
        f'<svg viewBox="{box}" role="img" aria-labelledby="{key}-title {key}-text">'
        f'<title id="{key}-title">{escape(title)}</title><desc id="{key}-text">{escape(text)}</desc>{body}</svg>'
    )
    return Plot(title, caption, svg)


def _tidy(tag: str, key: str) -> str:
    """Give a tag the colours of the page and ids that start with `key`; drop fonts and surplus digits."""
    for placeholder, style_property in CSS_COLOURS.items():
        tag = tag.replace(placeholder, style_property)
    tag = re.sub(r"font-family: [^;\"]*(?:; )?", "", tag)
    tag = re.sub(r"font: (?:[a-z]+ )*([\d.]+px)[^;\"]*", r"font-size: \1", tag)
    tag = re.sub(r"(\.\d\d)\d+", r"\1", tag).replace("xlink:href=", "href=")
    return re.sub(r'( id="|href="#|url\(#)', rf"\1{key}-", tag)
