"""Draw the pictures of the pages: `python -m docs.draw` (with matplotlib).

The figures of live-repair.svg come from docs/pictures/live_repair.json, which `benchmarks/live_repair.py` measures.
Those of out-of-memory.svg come from the tables of its page.
"""

from __future__ import annotations

import argparse
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parent / "pictures"
OUT_OF_MEMORY = Path(__file__).parent / "out-of-memory.md"
LABELS = {
    "without": "without checkpointing",
    "enabled": "gradient_checkpointing_enable()",
    "wrapped": "wrap_blocks(model)",
}
PLAIN, GOOD, BAD, INK, QUIET = "#8a929c", "#1f6fb2", "#b3400a", "#1a1d21", "#5d6672"
COLOURS = {"without": PLAIN, "enabled": BAD, "wrapped": GOOD}
GIB = 1024**3


def pictures() -> dict[str, str]:
    """Return every drawn picture as SVG by its file name."""
    figures = json.loads((FOLDER / "live_repair.json").read_text(encoding="utf-8"))
    return {"live-repair.svg": svg(live_repair(figures)), "out-of-memory.svg": out_of_memory()}


def out_of_memory() -> str:
    """Draw what to try in which order, with the figures of the two tables on the page that shows this picture."""
    page = OUT_OF_MEMORY.read_text(encoding="utf-8")
    step, measured = table_rows(page, "a step"), table_rows(page, "with")
    kept = [
        ("no checkpointing", *step["no checkpointing"]),
        ("1. checkpoint the blocks", *step["`wrap_blocks(model)`"]),
        ("2. keep attention, offload all", *step['`save=["attention"]`, `offload="cpu"`, `save_offload=True`']),
    ]
    states = [
        ("AdamW", measured["AdamW"][1]),
        ("1. 8-bit Adam", measured["`--optimizer adamw-8bit`"][1]),
        ("2. LoRA", measured["`--lora 16`"][1]),
        ("3. LoRA on weights of 4 bits", measured["`--lora 16 --load-in-4bit`"][1]),
        ("or: FSDP over 8 cards", measured["`--ranks 8 --fsdp`"][1]),
    ]
    left = ladder(20, [(name, peak, f"{peak}, {seconds}") for name, peak, seconds in kept])
    return DECISION.format(left=left, right=ladder(400, [(name, peak, peak) for name, peak in states]))


DECISION = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 740 436" role="img" aria-labelledby="title text">
<title id="title">What to try when a training runs out of memory, in which order</title>
<desc id="text">fit chooses how to checkpoint. Where nothing fits, explain says what fills the card. Against what
blocks keep: checkpoint them, then keep attention and offload all, then long_context. Against parameters, gradients
and optimizer: 8-bit Adam, then LoRA, then LoRA on weights of 4 bits, or FSDP over several cards.</desc>
<style>
text {{ font: 12.5px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1a1d21 }}
.code {{ font: 600 14px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f6fb2 }}
.what {{ font-weight: 600; font-size: 15px }}
.quiet {{ fill: #5d6672 }}
.middle {{ text-anchor: middle }}
.bar {{ fill: #1f6fb2 }}
.box {{ fill: #fff; stroke: #1f6fb2; stroke-width: 1.5 }}
path {{ stroke: #8a929c; stroke-width: 1.5; fill: none }}
</style>
<rect width="740" height="436" rx="8" fill="#fbfbfa"/>
<rect class="box" x="210" y="26" width="300" height="56" rx="6"/>
<text class="code middle" x="360" y="50">ckpt_surgery fit train.py</text>
<text class="quiet middle" x="360" y="70">checkpoints as little as fits, and trains on</text>
<path d="M360 82 V114 m-5 -5 l5 6 l5 -6"/>
<text class="quiet" x="372" y="103">nothing fits, or you want to know why</text>
<rect class="box" x="210" y="118" width="300" height="56" rx="6"/>
<text class="code middle" x="360" y="142">ckpt_surgery explain MODEL</text>
<text class="quiet middle" x="360" y="162">what fills the card?</text>
<path d="M210 146 H130 V192 m-5 -5 l5 6 l5 -6 M510 146 H590 V192 m-5 -5 l5 6 l5 -6"/>
<text class="what" x="20" y="220">What blocks keep for the backward</text>
<text class="quiet" x="20" y="238">grows with tokens and batch: checkpoint</text>
{left}
<text x="20" y="343">3. long_context(model): logits and MLPs in parts</text>
<text class="quiet" x="20" y="400">Llama of 1.1 billion, 32,768 tokens, one H200:</text>
<text class="quiet" x="20" y="418">measured peak, and seconds of a step</text>
<text class="what" x="400" y="220">Parameters, gradients, optimizer</text>
<text class="quiet" x="400" y="238">stay, however much is checkpointed: hold fewer</text>
{right}
<text class="quiet" x="400" y="400">Mistral 7B, 4,096 tokens, blocks checkpointed:</text>
<text class="quiet" x="400" y="418">peak by explain</text>
</svg>
"""


def table_rows(page: str, first: str) -> dict[str, list[str]]:
    """Return the rows of the table whose first column has the heading `first`, by their first cells."""
    (table,) = re.findall(rf"^\| {first} \|.*\n\|[ |-]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
    return {name: cells for name, *cells in rows}


def ladder(x: int, rungs: Sequence[tuple[str, str, str]]) -> str:
    """Draw options as rungs at `x`: each is its name, a size with its unit, which the bar shows, and a label."""
    longest = max(float(size.split()[0]) for _, size, _ in rungs)
    lines = []
    for at, (name, size, label) in enumerate(rungs):
        y, length = 250 + 26 * at, 56 * float(size.split()[0]) / longest
        lines += [
            f'<text x="{x}" y="{y + 15}">{name}</text>',
            f'<rect class="bar" x="{x + 182}" y="{y + 3}" width="{length:.1f}" height="16"/>',
            f'<text x="{x + 188 + length:.0f}" y="{y + 15}">{label}</text>',
        ]
    return "\n".join(lines)


def live_repair(figures: dict[str, Any]) -> Figure:
    """Draw bars: what the blocks of a tiny model keep, and the peak memory of a process with a real one."""
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
    """Draw one bar for each way, followed by its value."""
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
    """Return the figure on white as SVG, with text as text and nothing that differs between two runs."""
    from matplotlib import rc_context

    drawn = io.StringIO()
    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "ckpt_surgery", "font.family": "sans-serif"}
    with rc_context(style):
        metadata: dict[str, Any] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(drawn, format="svg", metadata=metadata, facecolor="white")
    return re.sub(r"(\.\d\d)\d+", r"\1", drawn.getvalue())


def words(picture: str) -> list[str]:
    """Return the texts in a picture, in drawing order."""
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
