"""docs/gpu.md, made from the json files of a GPU run; by hand there stands only what it says before the first."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu.parts import Result, State
from ckpt_surgery.text import code, listed, markdown_table, plural

_INTRODUCTION = """# On a GPU

`make gpu` measures what this project claims about memory and time on one CUDA GPU, runs the tests marked `gpu`, and
writes this page."""
_OTHERS = """## Figures of others

What others have published of their own machines, for comparison:

- [ALST](https://arxiv.org/abs/2506.13996), of DeepSpeed: Llama 8B at 500,000 tokens on one H100.
- [TRL](https://github.com/huggingface/trl/releases/tag/v1.13.0): Qwen3-8B at 1,048,576 tokens on eight H100s, 56.2 GB
  and 380 s a step.
- [DeepSpeed](https://github.com/deepspeedai/DeepSpeed/pull/8282): block inputs in host memory, 58 % less peak at 5.7 %
  more time.
- [prime-rl](https://github.com/PrimeIntellect-ai/prime-rl/pull/3419): selective checkpointing by operators, 30 to 40 %
  less memory at 3 to 5 %.
- [transformers](https://github.com/huggingface/transformers/pull/48444): offload of checkpoints, with what it frees.
"""
_DRY = "**A dry run: toy sizes on the processor. These figures mean nothing, and none of them is of a GPU.**"
_NO_PICTURES = "There are no pictures: matplotlib is not installed."
_UNPLOTTED = ("x", "", "block inputs")
"""Units of ratios and counts."""


def write_page(page: Path, results: Sequence[Result], machine: Mapping[str, str], *, dry: bool) -> None:
    """Write the page, and beside it the pictures that it shows."""
    page.parent.mkdir(parents=True, exist_ok=True)
    pictures = page.with_suffix("")
    sections = []
    for result in results:
        drawn = bars(result) if find_spec("matplotlib") else {}
        picture = pictures / f"{result.part.name}.svg"
        if drawn:
            pictures.mkdir(exist_ok=True)
            draw(picture, drawn)
        else:
            picture.unlink(missing_ok=True)
        sections.append(section(result, f"{pictures.name}/{picture.name}" if drawn else ""))
    rows = [[name, value] for name, value in machine.items()]
    notes = [*([_DRY] if dry else []), *([] if find_spec("matplotlib") else [_NO_PICTURES])]
    head = [_INTRODUCTION, *notes, markdown_table(["", ""], rows), summary(results)]
    page.write_text("\n\n".join([*head, *sections, _OTHERS]), encoding="utf-8")


def summary(results: Sequence[Result]) -> str:
    """Make a line for each part: whether it met its targets."""
    rows = [
        [f"[{result.part.question}](#{slug(result.part.question)})", verdict(result), f"{result.seconds:.0f} s"]
        for result in results
    ]
    return markdown_table(["question", "result", "took"], rows)


def verdict(result: Result) -> str:
    """Return what became of a part, in a few words."""
    if result.state is State.WAITING:
        return "not finished" if result.figures else "not run yet"
    if result.state is not State.ENDED:
        return str(result.state)
    targets = sum(1 for figure in result.figures.values() if figure["verdict"])
    said = [f"{len(result.missed)} of {plural(targets, 'target')} missed"] if result.missed else []
    said += [f"{plural(len(result.errors), 'measurement')} failed"] if result.errors else []
    return listed(said) or "ok"


def section(result: Result, picture: str) -> str:
    """Write one part: its question, what is missing, picture and figures."""
    part = result.part
    lines = [
        f"## {part.question}",
        f"Would prove that {part.claim}.",
        f"By {code(part.file)}; {code(f'python -m benchmarks.gpu {part.name}')} runs it alone.",
    ]
    lines += missing(result)
    if picture:
        lines.append(f"![{part.question}]({picture})")
    rows = [
        [
            name,
            f"{statistics.median(figure['values']):.4g}"
            if figure["unit"] != "tokens"
            else f"{figure['values'][0]:,.0f}",
            figure["unit"],
            figure.get("target", ""),
            figure["verdict"],
        ]
        for name, figure in result.figures.items()
        if figure["values"]
    ]
    if rows:
        lines.append(markdown_table(["figure", "median", "unit", "target", ""], rows))
    if result.failed:
        lines.append("Failed: " + ", ".join(map(code, result.failed)))
    return "\n\n".join(lines)


def slug(heading: str) -> str:
    """Return the anchor that Python-Markdown gives a heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def missing(result: Result) -> Iterator[str]:
    """Return what a part has not measured, and why."""
    some = " What it had measured by then:" if result.figures else ""
    if result.state is State.WAITING:
        yield ("Not finished." if result.figures else "Not run yet.") + " `make gpu` goes on with it."
    elif result.state is State.SKIPPED:
        yield f"Skipped: {result.problem}.{some}"
    elif result.problem:
        yield f"Not {'all ' if result.figures else ''}measured: {result.problem}.{some}"
    if result.no_room:
        yield "The device has too little memory for: " + "; ".join(result.no_room) + "."
    for name, why in result.errors.items():
        yield f"Failed: {name} ({code(why)})."
    for note in result.notes:
        yield f"{note[:1].upper()}{note[1:]}."


def bars(result: Result) -> dict[str, dict[str, float]]:
    """Return the values that a part's picture shows, by unit; empty where it has none."""
    chosen: dict[str, dict[str, float]] = {}
    for name, figure in result.figures.items():
        if name.startswith(result.part.plotted) and figure["values"] and figure["unit"] not in _UNPLOTTED:
            chosen.setdefault(figure["unit"], {})[name] = statistics.median(figure["values"])
    return chosen


def draw(file: Path, by_unit: Mapping[str, Mapping[str, float]]) -> None:
    """One bar for each value, with its number, and a plot for each unit, below each other; the same for the same."""
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
