"""docs/gpu.md, made from the json files of a GPU run; by hand there stands only what it says before the first."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
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


def write_page(page: Path, results: Sequence[Result], machine: Mapping[str, str], *, dry: bool) -> None:
    """Write the page."""
    page.parent.mkdir(parents=True, exist_ok=True)
    rows = [[name, value] for name, value in machine.items()]
    head = [_INTRODUCTION, *([_DRY] if dry else []), markdown_table(["", ""], rows), summary(results)]
    page.write_text("\n\n".join([*head, *map(section, results), _OTHERS]), encoding="utf-8")


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


def section(result: Result) -> str:
    """Write one part: its question, what is missing, and its figures."""
    part = result.part
    lines = [
        f"## {part.question}",
        f"Would prove that {part.claim}.",
        f"By {code(part.file)}; {code(f'python -m benchmarks.gpu {part.name}')} runs it alone.",
    ]
    lines += missing(result)
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
