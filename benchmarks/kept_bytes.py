"""What `explain` says that tiny models keep, held against what real steps of them keep.

    python -m benchmarks.kept_bytes kept_bytes.jsonl [--jobs 2] [--sample 100] [--minutes 30] [--page] [CLASS ...]

Each class runs a step with data and one on shapes, without checkpointing and after `wrap_blocks`. The bytes kept with
data are those of the meter that `verify` uses. `--page` keeps the figures of the installed transformers for
docs/coverage/kept_bytes.md. Exits with 1 where one differs and no value was drawn.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.class_survey import rows_of, survey
from benchmarks.kept_bytes_report import Agreement, counts, figures_of, keep

SECONDS = 120.0
"""What one class may take."""


def examine(name: str) -> dict[str, Any]:
    """The agreement for one class, without checkpointing ("off") and wrapped ("on")."""
    import torch

    from ckpt_surgery import tiny_model, wrap_blocks
    from ckpt_surgery.errors import SurgeryError
    from ckpt_surgery.measure.step import own_copy
    from ckpt_surgery.tiny import model_classes

    entry = model_classes()[name]
    tiny = tiny_model(entry.load(), entry.config_class(entry.model_type))
    model = tiny.model.train()
    without_layer_drop(model)
    with suppress(Exception), torch.no_grad():  # some make tables of positions in their first forward, and keep them
        model(**own_copy(tiny.inputs))
    rows = {"off": _compared(model, tiny.inputs)}
    try:
        wrap_blocks(model, self_check="never")
    except SurgeryError as error:
        rows["on"] = {"agreement": Agreement.NOT_WITH_DATA, "why": str(error)[:200]}
    else:
        rows["on"] = _compared(model, tiny.inputs)
    return {"steps": rows}


def _compared(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    from ckpt_surgery import PlanningError, explain
    from ckpt_surgery.measure.arguments import call_arguments
    from ckpt_surgery.measure.loss import loss_of
    from ckpt_surgery.measure.step import own_copy
    from ckpt_surgery.planning.allocations import run_metered
    from ckpt_surgery.planning.figures import peak_of

    try:
        arguments = call_arguments({name: own_copy(value) for name, value in inputs.items()})
        copied = copy.deepcopy(model)  # what a cache holds for `model` would not be kept again
        step = run_metered(copied, arguments, loss_of)
        peak = peak_of(step, 0).bytes
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
    sizes = {"kept": kept, "told": told.kept_bytes, "peak": peak, "told_peak": told_peak, "drawn": told.drawn}
    if (told.kept_bytes, told_peak) == (kept, peak):
        return {"agreement": Agreement.EQUAL, **sizes}
    if told.drawn:
        return {"agreement": Agreement.DRAWN, **sizes}
    return {"agreement": Agreement.KEPT_DIFFERS if told.kept_bytes != kept else Agreement.PEAK_DIFFERS, **sizes}


def kept_by_a_step(model: Any, inputs: Mapping[str, Any]) -> int:
    """The bytes kept by a step with data, as `verify` measures them."""
    from ckpt_surgery.measure.step import run_step
    from ckpt_surgery.measure.switch import as_it_stands
    from ckpt_surgery.runtime.blocks.discovery import find_blocks

    blocks = {block.name: block.module for block in find_blocks(model)}
    record = run_step(model, inputs, blocks=blocks, checkpointing="non_reentrant", switch=as_it_stands)
    return record.memory.kept


def without_layer_drop(model: Any) -> None:
    """No layer is dropped at random: how many are would decide what is kept."""
    from ckpt_surgery.planning.target import drop_no_layers

    for module in model.modules():
        for holder in (module, getattr(module, "config", None)):
            drop_no_layers(holder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Survey what the arguments name, and print the counts and each class that differs."""
    parser = argparse.ArgumentParser(prog="kept_bytes", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("classes", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--sample", type=int, help="examine no more than so many classes")
    parser.add_argument("--minutes", type=float, default=inf, help="begin no further one after so long")
    parser.add_argument("--page", action="store_true", help="keep the figures for the page")
    options = parser.parse_intermixed_args(arguments)
    import transformers

    import ckpt_surgery.planning
    import ckpt_surgery.tiny  # noqa: F401
    from ckpt_surgery.survey.model_names import catalogue

    known = sorted(catalogue())
    names = options.classes or Random(0).sample(known, len(known))[: options.sample]
    in_all = 60 * options.minutes
    survey(names, options.file, examine, jobs=options.jobs, seconds=SECONDS, in_all=in_all, first="GPT2Model")
    rows = rows_of(options.file)
    shown = (Agreement.PEAK_DIFFERS, Agreement.KEPT_DIFFERS, Agreement.NOT_ON_SHAPES)
    for row in rows:
        for when, step in row.get("steps", {}).items():
            if step["agreement"] in shown:
                print(f"{row['class']}, checkpointing {when}: {step}")
    found = counts(rows)
    for agreement, count in found.most_common():
        print(f"{count:5} {agreement}")
    if options.page:
        keep(transformers.__version__, figures_of(rows, len(known)))
    return 1 if found[Agreement.KEPT_DIFFERS] else 0


if __name__ == "__main__":
    sys.exit(main())
