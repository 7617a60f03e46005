"""docs/gpu.md, made from the json files of a GPU run. Nothing on it is written by hand."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.parts import Part
from ckpt_surgery.text import code, markdown_table, plural

_INTRODUCTION = """# On a GPU

`make gpu` measures what this project claims about memory and time on one CUDA GPU, runs the tests marked `gpu`, and
writes this page."""
NOT_RUN = f"""{_INTRODUCTION} It has not been run on a GPU yet: no figure of this project comes from one.

```console
$ make gpu
```

It needs one CUDA GPU and Python, and takes less than 30 minutes on an H100. An interrupted run goes on where it
stopped. `make gpu DRY=1` shows on any machine what would run.
"""
_DRY = "**A dry run: toy sizes on the processor. These figures mean nothing.**"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a part: its figures by name, and its problem where it did not end as it should."""

    part: Part
    problem: str
    figures: Mapping[str, Mapping[str, Any]]
    seconds: float
    failed: Sequence[str] = ()

    @classmethod
    def of(cls, part: Part, content: Mapping[str, Any]) -> Result:
        """The result that a json file holds."""
        return cls(
            part,
            content.get("problem", ""),
            content.get("figures", {}),
            float(content.get("seconds", 0)),
            content.get("failed", ()),
        )

    @property
    def missed(self) -> list[str]:
        """The names of the figures that miss their targets."""
        return [name for name, figure in self.figures.items() if figure["verdict"] == "missed"]

    @property
    def ok(self) -> bool:
        """Whether the part ended well and met its targets."""
        return not self.problem and not self.missed


def write_page(page: Path, results: Sequence[Result], machine: Mapping[str, str], *, dry: bool) -> None:
    """Write the page, and beside it the pictures that it shows."""
    page.parent.mkdir(parents=True, exist_ok=True)
    pictures = page.with_suffix("")
    sections = []
    for result in results:
        drawn = bars(result)
        picture = pictures / f"{result.part.name}.svg"
        if drawn:
            from benchmarks.gpu.plots import draw

            pictures.mkdir(exist_ok=True)
            draw(picture, *drawn)
        sections.append(section(result, f"{pictures.name}/{picture.name}" if drawn else ""))
    rows = [[name, value] for name, value in machine.items()]
    head = [_INTRODUCTION, *([_DRY] if dry else []), markdown_table(["", ""], rows), summary(results)]
    page.write_text("\n\n".join([*head, *sections]) + "\n", encoding="utf-8")


def summary(results: Sequence[Result]) -> str:
    """A line for each part: whether it met its targets."""
    rows = []
    for result in results:
        targets = sum(1 for figure in result.figures.values() if figure["verdict"])
        verdict = result.problem or (
            f"{len(result.missed)} of {plural(targets, 'target')} missed" if result.missed else "ok"
        )
        rows.append([f"[{result.part.question}](#{result.part.name})", verdict, f"{result.seconds:.0f} s"])
    return markdown_table(["question", "result", "took"], rows)


def section(result: Result, picture: str) -> str:
    """One part: its question, picture and figures."""
    lines = [f'<a id="{result.part.name}"></a>\n\n## {result.part.question}']
    lines.append(f"{code(' '.join(('python', *result.part.arguments, *result.part.real)))}")
    if result.problem:
        lines.append(f"Not measured: {result.problem}.")
    if picture:
        lines.append(f"![{result.part.question}]({picture})")
    if result.figures:
        rows = [
            [
                name,
                f"{statistics.median(figure['values']):.4g}",
                figure["unit"],
                figure.get("target", ""),
                figure["verdict"],
            ]
            for name, figure in result.figures.items()
            if figure["values"]
        ]
        lines.append(markdown_table(["figure", "median", "unit", "target", ""], rows))
    if result.failed:
        lines.append("Failed: " + ", ".join(map(code, result.failed)))
    return "\n\n".join(lines)


def bars(result: Result) -> tuple[str, dict[str, float]] | None:
    """The unit and the values that a part's picture shows; None where it has none."""
    chosen = {
        name: figure
        for name, figure in result.figures.items()
        if name.startswith(result.part.plotted) and figure["values"] and figure["unit"] not in ("x", "block inputs")
    }
    if not result.part.plotted or not chosen:
        return None
    return next(iter(chosen.values()))["unit"], {
        name: statistics.median(figure["values"]) for name, figure in chosen.items()
    }


def main() -> None:
    """Write the page as it is before any GPU run."""
    page = Path(__file__).resolve().parents[2] / "docs" / "gpu.md"
    page.write_text(NOT_RUN, encoding="utf-8")


if __name__ == "__main__":
    main()
