"""Draw the pictures of the pages: `python -m docs.draw` (with matplotlib).

The figures come from docs/pictures/live_repair.json, which `benchmarks/live_repair.py` measures.
"""

from __future__ import annotations

import argparse
import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parent / "pictures"
LABELS = {
    "without": "without checkpointing",
    "enabled": "gradient_checkpointing_enable()",
    "wrapped": "wrap_blocks(model)",
}
PLAIN, GOOD, BAD, INK, QUIET = "#8a929c", "#1f6fb2", "#b3400a", "#1a1d21", "#5d6672"
COLOURS = {"without": PLAIN, "enabled": BAD, "wrapped": GOOD}
GIB = 1024**3


def pictures() -> dict[str, str]:
    """Every drawn picture as SVG by its file name. Text stays text."""
    figures = json.loads((FOLDER / "live_repair.json").read_text(encoding="utf-8"))
    return {"live-repair.svg": svg(live_repair(figures))}


def live_repair(figures: dict[str, Any]) -> Figure:
    """Bars: what the blocks of a tiny model keep, and what a process with a real one needs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 2.3))
    left, right = figure.subplots(1, 2, sharey=True)
    kept, real = figures["tiny"]["kept_bytes"], figures["real"]
    left.invert_yaxis()
    bars(left, {way: kept[way] / 1024 for way in LABELS}, {way: f"{kept[way]:,} bytes" for way in LABELS})
    left.set_title("kept for the backward pass, 4 tiny blocks", fontsize=8.5, color=INK, loc="left")
    peaks = {way: real[way]["peak_bytes"] / GIB for way in LABELS}
    bars(right, peaks, {way: f"{peak:.2f} GiB" for way, peak in peaks.items()})
    tokens = f"{real['batch']} x {real['tokens']:,}"
    title = f"peak memory, {real['layers']} blocks, width {real['width']}, {tokens} tokens"
    right.set_title(title, fontsize=8.5, color=INK, loc="left")
    versions = figures["versions"]
    source = f"GPTBigCode, transformers {versions['transformers']}, torch {versions['torch']}, CPU, {figures['date']}"
    figure.text(0.995, 0.01, source, fontsize=7, color=QUIET, ha="right")
    figure.subplots_adjust(left=0.245, right=0.985, top=0.88, bottom=0.1, wspace=0.06)
    return figure


def bars(axes: Axes, lengths: dict[str, float], words: dict[str, str]) -> None:
    """One bar for each way, with its value behind it."""
    axes.barh([LABELS[way] for way in lengths], list(lengths.values()), color=[COLOURS[way] for way in lengths])
    longest = max(lengths.values())
    for at, (way, length) in enumerate(lengths.items()):
        axes.text(length + longest / 60, at, words[way], va="center", fontsize=9, color=INK)
    axes.set_xlim(0, longest * 1.4)
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0, labelsize=9, labelcolor=INK)
    for side in axes.spines.values():
        side.set_visible(False)


def svg(figure: Figure) -> str:
    """The figure on white, with text as text and without what differs between two runs."""
    from matplotlib import rc_context

    drawn = io.StringIO()
    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "ckpt_surgery", "font.family": "sans-serif"}
    with rc_context(style):
        metadata: dict[str, Any] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(drawn, format="svg", metadata=metadata, facecolor="white")
    return re.sub(r"(\.\d\d)\d+", r"\1", drawn.getvalue())


def words(picture: str) -> list[str]:
    """The texts in a picture, in the order in which they are drawn."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture)


def main() -> int:
    """Write the pictures."""
    argparse.ArgumentParser(prog="python -m docs.draw", description=__doc__).parse_args()
    for name, picture in pictures().items():
        (FOLDER / name).write_text(picture, encoding="utf-8")
        print(f"docs/pictures/{name}: {len(picture.encode()):,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
