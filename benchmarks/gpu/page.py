"""docs/gpu.md, made from the json files of a GPU run. Nothing on it is written by hand."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu.result import Result, State
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
_FROM_OUTSIDE = """\
## Measured from outside on an H200

On commit cdb4c05, not by `make gpu`: one NVIDIA H200, torch 2.11.0+cu130, transformers 5.23.0, Python 3.12.3,
2026-11-27. A Llama of 1.1 billion parameters (24 layers of 2048, bfloat16, sdpa), a step and its peak:

| way | 8,192 tokens | 32,768 tokens |
| --- | --- | --- |
| no checkpointing | 0.196 s, 19.86 GB | 1.396 s, 72.49 GB |
| transformers' own | 0.252 s, 5.33 GB | 1.785 s, 9.30 GB |
| `wrap_blocks` | 0.251 s, 5.33 GB | 1.785 s, 9.30 GB |
| transformers' offload | 0.287 s, 5.30 GB | 1.874 s, 8.10 GB |
| torch's `save_on_cpu` | | 1.892 s, 8.10 GB |
| `offload="cpu"` | 0.254 s, 5.30 GB | 1.786 s, 8.15 GB |
| torch's selective checkpointing, attention | 0.257 s, 5.33 GB | 1.546 s, 12.48 GB |
| `save=["attention"]` | 0.298 s, 5.33 GB | 1.548 s, 12.48 GB |
| `save=["attention"]`, `offload="cpu"`, `save_offload=True` | | 1.551 s, 8.28 GB |
| `save=["matmul:2"]`, at 32K with attention | 0.295 s, 7.91 GB | 1.510 s, 27.80 GB |
| `self_check="always"` | 0.538 s | |
| guard, a block proved in every step | 0.268 s, 0.99 GB more | |
| guard, every step checked | 0.323 s | |

Gradients were equal to the bit in 29 classes with `wrap_blocks`, with and without offload. `verify` gave the verdict
of the processor on eleven of twelve classes; T5 failed there. `explain` said 0.11 to 0.74 % less than
`max_memory_allocated` for language models, 2.14 % less for a ViT-L with 128 images, and 4.04 % less with
checkpointing.

## Expected for the code of today

These are expectations, and nobody has measured them. Where the host was the limit, they follow from its time for a
block on a processor, and the kernels are the same:

| what | measured at cdb4c05 | expected | why |
| --- | --- | --- | --- |
| `save=["attention"]` at 8,192 tokens | 0.298 s | 0.236 to 0.240 s | what was kept is replayed, without a mode |
| `save=["matmul:2"]` at 8,192 tokens | 0.295 s | 0.232 to 0.240 s | the same |
| `self_check="always"` at 8,192 tokens | 0.538 s | 0.262 to 0.27 s | what a block saves is summed in one launch |
| `explain`, language models | 69 MB too little | within 0.3 % | it counts cuBLAS's workspace, which is as large |
| `explain`, ViT-L, plain and checkpointed | -2.14 %, -4.04 % | -1.6 %, -0.5 % | it counts that and the images |
| `verify`, T5 | failed | ok | kernels that add up in any order are measured as noise |

Of the guard no other figures than the measured ones are expected."""
NOT_RUN = f"""{_INTRODUCTION}
It has not been run on a GPU yet. Until then, this page has what was measured from outside.

```console
$ make gpu
```

It needs one CUDA GPU, and no network: it runs with the torch (2.8 or later) and the transformers (4.52.4 or later) of
your Python, and where they are missing it says what to download elsewhere. It takes less than 40 minutes; with
`MINUTES=9` it leaves out what does not fit, and says so. It measures, in the order of what it proves: the tests;
offload at 8K and 32K tokens, next to transformers' own and to torch's `save_on_cpu`; what `save` keeps, next to
torch's selective checkpointing; what the self-check and the guard cost; predicted peaks and a plan against measured
ones; the longest sequence at which a model of 8 billion parameters trains; what a call of a block costs; and offload
and `save` at 128K tokens. A run that was ended goes on where it stopped. `make gpu DRY=1` shows on any machine what
would run.

{_FROM_OUTSIDE}

{_OTHERS}"""
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
            from benchmarks.gpu.plots import draw

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
    """A line for each part: whether it met its targets."""
    rows = [
        [f"[{result.part.question}](#{slug(result.part.question)})", verdict(result), f"{result.seconds:.0f} s"]
        for result in results
    ]
    return markdown_table(["question", "result", "took"], rows)


def verdict(result: Result) -> str:
    """What became of a part, in a few words."""
    if result.state is State.WAITING:
        return "not finished" if result.figures else "not run yet"
    if result.state is not State.ENDED:
        return str(result.state)
    targets = sum(1 for figure in result.figures.values() if figure["verdict"])
    said = [f"{len(result.missed)} of {plural(targets, 'target')} missed"] if result.missed else []
    said += [f"{plural(len(result.errors), 'measurement')} failed"] if result.errors else []
    return listed(said) or "ok"


def section(result: Result, picture: str) -> str:
    """One part: its question, what is missing, picture and figures."""
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
    """The anchor that Python-Markdown gives a heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def missing(result: Result) -> Iterator[str]:
    """What a part has not measured, and why."""
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
    """The values that a part's picture shows, by unit; empty where it has none."""
    chosen: dict[str, dict[str, float]] = {}
    for name, figure in result.figures.items():
        if name.startswith(result.part.plotted) and figure["values"] and figure["unit"] not in _UNPLOTTED:
            chosen.setdefault(figure["unit"], {})[name] = statistics.median(figure["values"])
    return chosen


def main() -> None:
    """Write the page as it is before any GPU run."""
    page = Path(__file__).resolve().parents[2] / "docs" / "gpu.md"
    page.write_text(NOT_RUN, encoding="utf-8")


if __name__ == "__main__":
    main()
