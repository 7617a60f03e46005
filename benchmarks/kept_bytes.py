"""The bytes that `explain` predicts tiny models keep, compared with those of real steps.

    python -m benchmarks.kept_bytes kept_bytes.jsonl --minutes 30 --page

Each class of the installed transformers runs a step with data and one on shapes, without checkpointing and after
`wrap_blocks`. The bytes kept with data are those of the meter that `verify` uses. Exits with 1 where one differs
and no value was drawn.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from benchmarks.survey import MODELS, Page, Row, Survey, installed, model_names, step_as_it_stands, tiny
from ckpt_surgery.text import code, markdown_table, plural, prose

NOT_BUILT = "no tiny model is built"


class Agreement(StrEnum):
    """The agreement of a step on shapes with one with data."""

    EQUAL = "kept bytes and peak equal"
    PEAK_DIFFERS = "kept bytes equal, peak not"
    DRAWN = "differ, and depend on what weights decide"
    KEPT_DIFFERS = "kept bytes differ"
    NOT_ON_SHAPES = "the step does not run on shapes"
    NOT_WITH_DATA = "the step does not run, or cannot be wrapped"


SHOWN = (Agreement.PEAK_DIFFERS, Agreement.KEPT_DIFFERS, Agreement.NOT_ON_SHAPES)
"""What the page names class by class."""


def measure(name: str) -> Row:
    """Compare the steps of one class, without checkpointing ("off") and wrapped ("on")."""
    import torch

    from ckpt_surgery import SurgeryError, wrap_blocks
    from ckpt_surgery.measure.step import own_copy

    made = tiny(name)
    model, inputs = made.model, made.inputs
    without_layer_drop(model)
    with (
        contextlib.suppress(Exception),
        torch.no_grad(),
    ):  # some make and keep tables of positions in their first forward
        model(**own_copy(inputs))
    steps = {"off": compared(model, inputs)}
    try:
        wrap_blocks(model, self_check="never")
        steps["on"] = compared(model, inputs)
    except SurgeryError as error:
        steps["on"] = {"agreement": Agreement.NOT_WITH_DATA, "why": str(error)[:200]}
    return {"steps": steps}


def compared(model: Any, inputs: Mapping[str, Any]) -> Row:
    """Run a step with data and explain one."""
    from ckpt_surgery import PlanningError, explain
    from ckpt_surgery.measure.arguments import call_arguments
    from ckpt_surgery.measure.loss import loss_of
    from ckpt_surgery.measure.step import own_copy
    from ckpt_surgery.planning.figures import Peak
    from ckpt_surgery.planning.step_meter import run_metered

    try:
        arguments = call_arguments({name: own_copy(value) for name, value in inputs.items()})
        # of a copy: what a cache holds for `model` would not be kept again
        peak = Peak.of(run_metered(copy.deepcopy(model), arguments, loss_of), 0).bytes
    except Exception as error:  # the released model's own fault
        return {"agreement": Agreement.NOT_WITH_DATA, "why": f"{type(error).__name__}: {error}"[:200]}
    kept = kept_by_a_step(copy.deepcopy(model), inputs)
    try:
        told = explain(model, inputs)
    except PlanningError as error:
        return {"agreement": Agreement.NOT_ON_SHAPES, "why": str(error)[:300]}
    if told.assumptions:
        return {"agreement": Agreement.NOT_ON_SHAPES, "why": told.assumptions[0][:300]}
    told_peak = told.peak.bytes - told.parameter_bytes - told.buffer_bytes
    if (told.kept_bytes, told_peak) == (kept, peak):
        agreement = Agreement.EQUAL
    elif told.drawn:
        agreement = Agreement.DRAWN
    else:
        agreement = Agreement.KEPT_DIFFERS if told.kept_bytes != kept else Agreement.PEAK_DIFFERS
    sizes = {"kept": kept, "told": told.kept_bytes, "peak": peak, "told_peak": told_peak, "drawn": told.drawn}
    return {"agreement": agreement, **sizes}


def kept_by_a_step(model: Any, inputs: Mapping[str, Any]) -> int:
    """Measure the bytes kept by a step with data, as `verify` does."""
    from ckpt_surgery.runtime.blocks.discovery import find_blocks

    blocks = {block.name: block.module for block in find_blocks(model)}
    kept: int = step_as_it_stands(model, inputs, blocks=blocks, checkpointing="non_reentrant").memory.kept
    return kept


def without_layer_drop(model: Any) -> None:
    """Drop no layer at random: how many are would decide what is kept."""
    from ckpt_surgery.planning.target import drop_no_layers

    for module in model.modules():
        for holder in (module, getattr(module, "config", None)):
            drop_no_layers(holder)


def counts(rows: Iterable[Row]) -> Counter[str]:
    """Count how many steps agree how; classes that are not built together."""
    found: Counter[str] = Counter()
    for row in rows:
        found.update([step["agreement"] for step in row["steps"].values()] if "steps" in row else [NOT_BUILT])
    return found


def figures_of(rows: Sequence[Row], known: int) -> dict[str, Any]:
    """Return the figures of one release, of `known` classes: counts, and each step that is neither equal nor drawn."""
    others = [
        {"class": row["case"], "checkpointing": when, **step}
        for row in sorted(rows, key=lambda row: row["case"])
        for when, step in row.get("steps", {}).items()
        if step["agreement"] in SHOWN
    ]
    return {"classes": len(rows), "known": known, "counts": counts(rows), "others": others}


def sections(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sections of the page, of the figures by release."""
    yield "# What explain predicts, to the byte"
    yield (
        "Tiny models with random weights ran a step with data on a CPU, and `explain` predicted it on shapes: what "
        "the forward\nkeeps for the backward, and the peak, without checkpointing and after `wrap_blocks`. "
        "`python -m benchmarks.kept_bytes`\nmeasures it."
    )
    heads = [
        f"{release}: {plural(one['classes'], 'class', 'classes')}"
        + (f" of {one['known']:,}, drawn at random" if one["classes"] < one["known"] else "")
        for release, one in figures.items()
    ]
    rows = {kind: [one["counts"].get(kind, 0) for one in figures.values()] for kind in (*Agreement, NOT_BUILT)}
    yield markdown_table(
        ["steps", *heads], [[kind, *(f"{n:,}" for n in numbers)] for kind, numbers in rows.items() if any(numbers)]
    )
    yield (
        "A step that depends on what weights decide, such as the experts that a router chooses, is predicted for one "
        "draw of\nthem, and `explain` says so."
    )
    yield "## Those that are not equal"
    others = [
        [code(step["class"]), release, step["checkpointing"], step["agreement"], _sizes(step)]
        for release, one in figures.items()
        for step in one["others"]
    ]
    columns = ["class", "transformers", "checkpointing", "result", "with data, and predicted"]
    yield markdown_table(columns, others) if others else "None."


def _sizes(step: Row) -> str:
    if "why" in step:
        return prose(step["why"][:200])
    return f"kept {step['kept']:,} and {step['told']:,}, peak {step['peak']:,} and {step['told_peak']:,}"


def conclude(rows: Sequence[Row], known: int, page: bool) -> bool:
    """Show the figures of the installed release, and tell whether kept bytes differ."""
    own = {installed("transformers")["transformers"]: figures_of(rows, known)}
    PAGE.show(own, page, lambda kept: dict(sorted((kept | own).items(), reverse=True)))
    return counts(rows)[Agreement.KEPT_DIFFERS] > 0


PAGE = Page("kept_bytes", "<!-- Written by `python -m docs.generate` from kept_bytes.json. -->", sections)
SURVEY = Survey("kept_bytes", __doc__, model_names, measure, conclude, MODELS)
if __name__ == "__main__":
    sys.exit(SURVEY.main())
