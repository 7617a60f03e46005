"""The pictures of docs/gpu.md: horizontal bars, as SVG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def draw(file: Path, by_unit: Mapping[str, Mapping[str, float]]) -> None:
    """Draw one bar for each value, with its number, and a plot for each unit, below each other; always the same."""
    import matplotlib
    from matplotlib.figure import Figure

    heights = [0.6 + 0.35 * len(values) for values in by_unit.values()]
    with matplotlib.rc_context({"svg.hashsalt": "ckpt_surgery", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8, sum(heights)), layout="constrained")
        plots = figure.subplots(len(by_unit), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, (unit, values) in zip(plots, by_unit.items(), strict=True):
            names = list(values)[::-1]
            drawn = axes.barh(names, [values[name] for name in names], color="#3b6ea5", height=0.6)
            axes.bar_label(drawn, fmt="%.3g", padding=3)
            axes.set_xlabel(unit)
            axes.spines[["top", "right"]].set_visible(False)
            axes.margins(x=0.12)
        figure.savefig(file, format="svg", metadata={"Date": None})
