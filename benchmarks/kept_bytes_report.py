"""What `explain` says that tiny models keep, beside real steps of them: the figures, and their page.

`kept_bytes` measures.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from ckpt_surgery.text import code, markdown_table, plural, prose

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "coverage" / "kept_bytes.json"
"""Where the figures of the page are kept, by release of transformers."""
NOT_BUILT = "no tiny model is built"
NOTICE = "<!-- Written by `python -m docs.generate` from kept_bytes.json. -->"
TEXT = """\
{notice}

# What explain predicts, to the byte

Tiny models with random weights ran a step with data on a CPU, and `explain` predicted it on shapes: what the forward
keeps for the backward, and the peak, without checkpointing and after `wrap_blocks`. `python -m benchmarks.kept_bytes`
measures it.

{table}

A step that depends on what weights decide, such as the experts that a router chooses, is predicted for one draw of
them, and `explain` says so.

## Those that are not equal

{others}
"""


class Agreement(StrEnum):
    """How a step on shapes agrees with one with data."""

    EQUAL = "kept bytes and peak equal"
    PEAK_DIFFERS = "kept bytes equal, peak not"
    DRAWN = "differ, and depend on what weights decide"
    KEPT_DIFFERS = "kept bytes differ"
    NOT_ON_SHAPES = "the step does not run on shapes"
    NOT_WITH_DATA = "the step does not run, or cannot be wrapped"


def counts(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """How many steps agree how; classes that are not built together."""
    found: Counter[str] = Counter()
    for row in rows:
        found.update([step["agreement"] for step in row["steps"].values()] if "steps" in row else [NOT_BUILT])
    return found


def figures_of(rows: Iterable[Mapping[str, Any]], known: int) -> dict[str, Any]:
    """The figures of one release, of `known` classes: counts, and each step that is neither equal nor drawn."""
    results = {row["class"]: row for row in rows}
    others = [
        {"class": name, "checkpointing": when, **step}
        for name, row in sorted(results.items())
        for when, step in row.get("steps", {}).items()
        if step["agreement"] in (Agreement.PEAK_DIFFERS, Agreement.KEPT_DIFFERS, Agreement.NOT_ON_SHAPES)
    ]
    return {"classes": len(results), "known": known, "counts": dict(counts(results.values())), "others": others}


def read() -> dict[str, Any]:
    """The figures by release. Raises OSError."""
    figures: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return figures


def keep(release: str, figures: Mapping[str, Any]) -> None:
    """Keep the figures of a release beside those of others."""
    every = (read() if FIGURES.is_file() else {}) | {release: figures}
    FIGURES.write_text(json.dumps(dict(sorted(every.items(), reverse=True)), indent=1) + "\n", encoding="utf-8")


def page(figures: Mapping[str, Any]) -> str:
    """The page in docs/coverage."""
    rows = [
        [kind, *(f"{of_release['counts'].get(kind, 0):,}" for of_release in figures.values())]
        for kind in (*Agreement, NOT_BUILT)
        if any(of_release["counts"].get(kind) for of_release in figures.values())
    ]
    heads = [
        f"{release}: {plural(one['classes'], 'class', 'classes')}"
        + (f" of {one['known']:,}, drawn at random" if one["classes"] < one["known"] else "")
        for release, one in figures.items()
    ]
    others = [
        [code(step["class"]), release, step["checkpointing"], step["agreement"], _sizes(step)]
        for release, one in figures.items()
        for step in one["others"]
    ]
    columns = ["class", "transformers", "checkpointing", "result", "with data, and predicted"]
    return TEXT.format(
        notice=NOTICE,
        table=markdown_table(["steps", *heads], rows),
        others=markdown_table(columns, others) if others else "None.",
    )


def _sizes(step: Mapping[str, Any]) -> str:
    if "why" in step:
        return prose(step["why"][:200])
    return f"kept {step['kept']:,} and {step['told']:,}, peak {step['peak']:,} and {step['told_peak']:,}"
