"""The pictures of docs/gpu.md: horizontal bars, as SVG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def draw(file: Path, unit: str, values: Mapping[str, float]) -> None:
    """One bar for each value, with its number, in a file that is the same for the same values."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "ckpt_surgery", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7, 0.6 + 0.35 * len(values)), layout="constrained")
        axes = figure.subplots()
        names = list(values)[::-1]
        drawn = axes.barh(names, [values[name] for name in names], color="#3b6ea5", height=0.6)
        axes.bar_label(drawn, fmt="%.3g", padding=3)
        axes.set_xlabel(unit)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.12)
        figure.savefig(file, format="svg", metadata={"Date": None})
