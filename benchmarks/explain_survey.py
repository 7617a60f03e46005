"""`explain` of every model type of the installed transformers, at the defaults of its configuration class.

    python -m benchmarks.explain_survey rows.jsonl --minutes 30 --page

One class is taken for each model type, the one that `ckpt_surgery explain MODEL_TYPE` takes, with two samples of 512
tokens, or fewer where it takes no more, in bfloat16, or in float32 where it does not run in bfloat16.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from time import process_time
from typing import Any

from benchmarks.survey import MODELS, TOO_LARGE, TOO_LONG, Page, Row, Survey, installed
from ckpt_surgery.text import code, listed, markdown_table, size

TOKENS = 512
SAMPLES = 2
"""The batch: batch normalisation takes more than one."""
SIGNS = {
    "reads values that depend on weights": "it reads values that depend on weights",
    "cannot be built on shapes": "it cannot be built with the defaults of its configuration class",
    "the constructor of": "it cannot be built with the defaults of its configuration class",
    "no inputs are known": "its forward accepts no inputs that are tried",
    "a step of": "its step cannot run on shapes",
}


def measure(model_type: str) -> Row:
    """Explain a step of the main class of a model type."""
    import torch

    from ckpt_surgery.planning.target import ReleasedModel, main_class
    from ckpt_surgery.survey.resolve import resolve

    start = process_time()
    target = main_class(resolve([model_type], variants=False))
    first = ""
    for dtype in (torch.bfloat16, torch.float32):  # some compute in float32 whatever their weights have
        try:
            model = ReleasedModel.of(target, tokens=None, batch=SAMPLES, dtype=dtype, most_tokens=TOKENS)
            told = model.explained()
            break
        except Exception as error:  # whatever a class does is its result
            first = first or f"{type(error).__name__}: {error}"[:400]
    else:
        return {"model": target.model, "problem": first}
    return {
        "model": target.model,
        "dtype": str(dtype).removeprefix("torch."),
        "parameters": told.parameter_bytes,
        "kept": told.kept_bytes,
        "peak": told.peak_bytes,
        "blocks": told.blocks,
        "drawn": told.drawn,
        "changed": list(model.changed),
        "seconds": round(process_time() - start, 1),
    }


def model_types() -> list[str]:
    """Return the model types that have a class which trains, in alphabetical order."""
    from ckpt_surgery.survey.model_names import catalogue

    return sorted({model_type for entry in catalogue().values() for model_type in entry.types})


def reason(problem: str) -> str:
    """Say why a model type does not work, without what is its own: the names, the numbers and the shapes."""
    if problem in (TOO_LONG, TOO_LARGE):
        return f"it {problem}"
    if "requires the" in problem and "library" in problem:
        return "a package that it needs is not installed"
    said = problem.partition(": ")[2]
    for sign, words in SIGNS.items():
        if sign in said:
            return words
    return "the class cannot be imported" if problem.startswith("CannotBuild") else said[:80]


def sections(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sections of the page: of a `version`, of `total` model types the `rows` of some."""
    every = sorted(figures["rows"], key=lambda row: row["case"])
    working = [row for row in every if "problem" not in row]
    fitted = [code(row["case"]) for row in working if row.get("changed")]
    reasons: dict[str, list[list[str]]] = defaultdict(list)
    for row in every:
        if "problem" in row:
            cells = [code(row["case"]), code(row.get("model", "-")), code(row["problem"][:200])]
            reasons[reason(row["problem"])].append(cells)
    yield (
        f"`ckpt_surgery explain` was asked for {len(every)} of the {figures['total']} model types of transformers "
        f"{figures['version']}: one class each, at\nthe defaults of its configuration class (its released size for "
        f"most), two samples of {TOKENS} tokens, or fewer where it\ntakes no more, in bfloat16, or in float32 where "
        f"it does not run in bfloat16, without checkpointing.\n**{len(working)} work "
        f"({len(working) / max(len(every), 1):.0%})**, {len(fitted)} of them with fields changed, as the defaults do "
        "not fit together.\nMade by `python -m benchmarks.explain_survey`, which goes on where it stopped."
        f"{' They are a sample, drawn at random.' if len(every) < figures['total'] else ''}"
    )
    if seconds := sorted(row["seconds"] for row in working):
        half = seconds[len(seconds) // 2]
        yield f"Half of them take less than {half:.0f} s of CPU time, the slowest {seconds[-1]:.0f} s."
    yield "## Those that do not work"
    for why, failures in sorted(reasons.items(), key=lambda item: -len(item[1])):
        yield f"### {why[:1].upper()}{why[1:]}: {len(failures)}"
        yield markdown_table(("model type", "class", "what was said"), failures)
    if not reasons:
        yield "None."
    yield "## Those that work"
    yield (
        '"Drawn" counts the operators whose result depends on what weights decide, such as the choice of a router: '
        "they were\ngiven values drawn at random, and sizes that depend on them may differ."
    )
    yield f"Those with fields changed: {listed(fitted) or 'none'}."
    yield markdown_table(
        ("model type", "class", "dtype", "parameters", "kept", "peak without optimizer", "drawn"),
        [
            [
                code(row["case"]),
                code(row["model"]),
                row["dtype"],
                *(size(row[key]) for key in ("parameters", "kept", "peak")),
                str(row["drawn"]),
            ]
            for row in working
        ],
    )


def conclude(rows: Sequence[Row], known: int, page: bool) -> bool:
    """Show what works and what does not, which is no failure."""
    PAGE.show({"version": installed("transformers")["transformers"], "total": known, "rows": rows}, page)
    return False


PAGE = Page("explain", "# explain", sections)
SURVEY = Survey("explain_survey", __doc__, model_types, measure, conclude, MODELS, 180.0, 10 * 2**30)
if __name__ == "__main__":
    sys.exit(SURVEY.main())
