"""What does `wrap_blocks` find and save in models of other libraries, and is it right?

    python -m benchmarks.stacks stacks.jsonl --page

Needs the packages of the nox session `stacks`, which runs this. Ten minutes on two cores. Exits with 1 where
gradients, buffers or the undo are wrong, the peak is above that of the library's own checkpointing, or a model cannot
be made.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from benchmarks.survey import MODELS, Page, Row, Survey, installed, step_as_it_stands, written_by
from ckpt_surgery.measure.results import MODES, SURGERY_MODE, Level
from ckpt_surgery.text import code, listed, markdown_table, paragraphs, percent, plural, prose, titled

LEVELS: tuple[Level, ...] = ("run", "recompute", "set", "values", "state")
ROUNDING = 1.005
"""How much more than the library's own checkpointing counts as more."""
DISTRIBUTIONS = {"open_clip": "open_clip_torch"}
"""The distributions that are called otherwise than their libraries."""


def cases() -> list[str]:
    """Return the names of all models."""
    from benchmarks.stack_models import MODELS

    return [f"{library}: {model}, {depth}" for library, models in MODELS.items() for model, depth in models]


def measure(case: str) -> Row:
    """Make a model, and try everything on it."""
    import torch

    from benchmarks.stack_models import MODELS

    declare_operators()
    torch.manual_seed(0)
    library, _, name = case.partition(": ")
    model, _, depth = name.rpartition(", ")
    return {"library": library, "model": model, "depth": depth, **tried(*MODELS[library][model, depth]())}


def tried(model: Any, inputs: Any) -> dict[str, Any]:
    """Run steps of a model without checkpointing, with its own switch and after `wrap_blocks`, and undo that."""
    from ckpt_surgery import SurgeryError, VerifyError, verify, wrap_blocks
    from ckpt_surgery.measure.arguments import checked_inputs
    from ckpt_surgery.measure.switch import switch_of

    given = checked_inputs(inputs)
    model.train()
    row: dict[str, Any] = {"blocks": {}, "verdicts": {}, "without": memory(model, given)}
    row |= {"library_switch": None, "wrapped": None, "undone": False, "problem": ""}
    with contextlib.suppress(VerifyError):  # it has no switch
        row["library_switch"] = memory(model, given, checkpointing="non_reentrant", switch=switch_of(model))
    before = state(model)
    try:
        surgery = wrap_blocks(model)
    except SurgeryError as error:
        return {**row, "problem": str(error)}
    report = verify(model, inputs, modes=SURGERY_MODE, levels=LEVELS)
    for run in report.modes:
        row["verdicts"][SURGERY_MODE] = "" if run.ok else run.refused or "; ".join(map(str, run.faults or run.skips))
    if report.problem:
        row["verdicts"][SURGERY_MODE] = report.problem
    row["wrapped"] = memory(model, given, checkpointing="non_reentrant", switch=switch_of(model))
    blocks: Counter[str] = Counter()
    for stack in surgery.summary().stacks:
        blocks[stack.block_class] += stack.checkpointed
    surgery.undo()
    row["undone"] = state(model) == before and memory(model, given) == row["without"]
    return {**row, "blocks": dict(blocks)}


def memory(model: Any, inputs: Mapping[str, Any], **options: Any) -> dict[str, int]:
    """Measure what a step keeps, and its peak."""
    measured = step_as_it_stands(model, inputs, **options).memory
    return {"kept": measured.kept, "peak": max(live for _, live in measured.timeline.points)}


def state(model: Any) -> dict[str, Any]:
    """Return what the attributes of every module are, hooks apart; flags by value."""
    return {
        name: {
            key: value if isinstance(value, bool) else id(value)
            for key, value in vars(module).items()
            if not key.startswith(("_forward", "_backward"))
        }
        for name, module in model.named_modules()
    }


def declare_operators() -> None:
    """Declare the two operators without which torchvision cannot be imported.

    The wheel on PyPI is built for CUDA, and its operators are not to be had beside a torch without CUDA.
    """
    import torch

    for name in ("nms", "qnms") if find_spec("torchvision") else ():
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def wrong(row: Row) -> bool:
    """Tell whether a step went wrong, or the undo."""
    return not row["problem"] and (any(row["verdicts"].values()) or not row["undone"])


def keeps_more(row: Row) -> bool:
    """Tell whether the peak is higher than with the library's own checkpointing."""
    own, ours = row["library_switch"], row["wrapped"]
    return own is not None and ours is not None and ours["peak"] > ROUNDING * own["peak"]


def sections(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sections of the page."""
    rows = figures["rows"]
    versions = listed([f"{name} {version}" for name, version in figures["versions"].items()])
    found = [row for row in rows if not row["problem"]]
    yield "# Models of other libraries"
    yield f"What `wrap_blocks` does to models with random weights, on a CPU, with {versions}."
    yield (
        f"Of {plural(len(rows), 'model')}, `wrap_blocks` found blocks in {len(found)}. "
        f"{sum(map(wrong, rows)) or 'None'} had wrong gradients, wrong buffers or an incomplete undo, and "
        f"{sum(map(keeps_more, rows)) or 'none'} had a higher peak than with the library's own checkpointing."
    )
    yield (
        "Gradients and buffers are those of a step without checkpointing, and every block is recomputed once. Bytes "
        "are those of activations: what the forward keeps for the backward, and the peak over the step, as shares of "
        "a step without checkpointing. Convolutions on small images keep much in their first layers, where there are "
        "no blocks."
    )
    modes = [mode for mode in MODES if any(mode in row["verdicts"] for row in rows)]
    titles = [mode.replace("_", "-") for mode in modes]
    header = ("model", "proportions", "blocks", *titles, "kept", "peak", "peak, own switch", "undo")
    for library in dict.fromkeys(row["library"] for row in found):
        yield f"## {library}"
        yield markdown_table(header, [_cells(row, modes) for row in found if row["library"] == library])
    refused = [(f"{row['library']}: {row['model']}", prose(row["problem"])) for row in rows if row["problem"]]
    yield titled("## Without blocks", markdown_table(("model", "what wrap_blocks says"), refused) if refused else "")
    yield paragraphs("## Measure it", "```console\n$ .venv/bin/nox -s stacks\n```")


def _cells(row: Row, modes: Sequence[str]) -> tuple[str, ...]:
    def share(part: str, figure: str) -> str:
        measured, whole = row[part], row["without"]
        return percent(measured[figure] / whole[figure]) if measured and whole else ""

    return (
        row["model"],
        row["depth"],
        ", ".join(f"{count} {code(name)}" for name, count in row["blocks"].items()),
        *(prose(row["verdicts"].get(mode, "not tried")) or "equal" for mode in modes),
        share("wrapped", "kept"),
        share("wrapped", "peak"),
        share("library_switch", "peak") or "has none",
        "exact" if row["undone"] else "**not exact**",
    )


def conclude(rows: Sequence[Row], known: int, page: bool) -> bool:
    """Show the models, and tell whether anything is wrong; on the page, rows of other libraries stay."""
    made = [{key: row[key] for key in row if key != "case"} for row in rows if "library" in row]
    names = dict.fromkeys(row["library"] for row in made)
    versions = {name: next(iter(installed(DISTRIBUTIONS.get(name, name)).values())) for name in names}

    def merged(kept: Mapping[str, Any]) -> dict[str, Any]:
        every = {**kept["versions"], **versions}
        whole = [*made, *(row for row in kept["rows"] if row["library"] not in versions)]
        return {"versions": every, "rows": sorted(whole, key=lambda row: list(every).index(row["library"]))}

    PAGE.show({"versions": versions, "rows": made}, page, merged)
    for row in (row for row in rows if "library" not in row):
        print(f"stacks: {row['case']}: {row['problem']}", file=sys.stderr)
    return len(made) < len(rows) or any(wrong(row) or keeps_more(row) for row in made)


PAGE = Page("stacks", written_by("python -m benchmarks.stacks", "stacks"), sections)
SURVEY = Survey("stacks", __doc__, cases, measure, conclude, MODELS[-1:], seconds=900.0, shuffled=False)
if __name__ == "__main__":
    sys.exit(SURVEY.main())
