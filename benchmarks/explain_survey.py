"""`explain` of every model type of the installed transformers, at the defaults of its configuration class.

    python -m benchmarks.explain_survey rows.jsonl [--jobs 2] [--sample 100] [--minutes 30] [--page] [MODEL_TYPE ...]

One class is taken for each model type, the one that `ckpt_surgery explain MODEL_TYPE` takes, with two samples of 512
tokens, or fewer where it takes no more, in bfloat16, or in float32 where it does not run in bfloat16. Their order is
drawn at random, the same each time. What is finished is kept in the file; of that, `--page` writes the page
docs/coverage/explain.md.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

from benchmarks.class_survey import TOO_LARGE, TOO_LONG, rows_of, survey
from ckpt_surgery.text import code, listed, markdown_table, plural, size

SECONDS = 180.0
"""What one model type may take."""
MOST_BYTES = 10 * 2**30
"""The resident memory that it may take."""
TOKENS = 512
SAMPLES = 2
"""The batch: batch normalisation takes more than one."""
SAMPLE = " They are a sample, drawn at random."
SIGNS = {
    "reads values that depend on weights": "it reads values that depend on weights",
    "cannot be built on shapes": "it cannot be built with the defaults of its configuration class",
    "the constructor of": "it cannot be built with the defaults of its configuration class",
    "no inputs are known": "its forward accepts no inputs that are tried",
    "a step of": "its step cannot run on shapes",
}
PAGE = Path(__file__).parents[1] / "docs" / "coverage" / "explain.md"
TEXT = """\
# explain

`ckpt_surgery explain` was asked for {count} of the {total} model types of transformers {version}: one class each, at
the defaults of its configuration class (its released size for most), two samples of {tokens} tokens, or fewer where it
takes no more, in bfloat16, or in float32 where it does not run in bfloat16, without checkpointing.
**{works} work ({share:.0%})**, {changed} of them with fields changed, as the defaults do not fit together.
Made by `python -m benchmarks.explain_survey`, which goes on where it stopped.{sample}

{slow}

## Those that do not work

{failures}

## Those that work

"Drawn" counts the operators whose result depends on what weights decide, such as the choice of a router: they were
given values drawn at random, and sizes that depend on them may differ.

Those with fields changed: {fitted}.

{table}
"""


def examine(model_type: str) -> dict[str, Any]:
    """What a step of the main class of a model type keeps."""
    import torch

    from ckpt_surgery.planning.target import explain_released, main_class, released
    from ckpt_surgery.survey.resolve import resolve

    start = process_time()
    target = main_class(resolve([model_type], variants=False))
    first = ""
    for dtype in (torch.bfloat16, torch.float32):  # some compute in float32 whatever their weights have
        try:
            model = released(target, tokens=None, batch=SAMPLES, dtype=dtype, most_tokens=TOKENS)
            told = explain_released(model)
            break
        except Exception as error:  # whatever a class does is its result
            first = first or f"{type(error).__name__}: {error}"[:400]
    else:
        return {"model": target.model, "problem": first}
    return {
        "model": target.model,
        "dtype": str(dtype).removeprefix("torch."),
        "tokens": model.tokens,
        "parameters": told.parameter_bytes,
        "kept": told.kept_bytes,
        "peak": told.peak_bytes,
        "blocks": told.blocks,
        "drawn": told.drawn,
        "changed": list(model.changed),
        "seconds": round(process_time() - start, 1),
    }


def model_types() -> list[str]:
    """The model types that have a class which trains, in alphabetical order."""
    from ckpt_surgery.survey.model_names import catalogue

    return sorted({model_type for entry in catalogue().values() for model_type in entry.types})


def reason(problem: str) -> str:
    """Why a model type does not work, without what is its own: the names, the numbers and the shapes."""
    if problem in (TOO_LONG, TOO_LARGE):
        return f"it {problem}"
    if "requires the" in problem and "library" in problem:
        return "a package that it needs is not installed"
    said = problem.partition(": ")[2]
    for sign, words in SIGNS.items():
        if sign in said:
            return words
    return "the class cannot be imported" if problem.startswith("CannotBuild") else said[:80]


def page(rows: Iterable[Mapping[str, Any]], version: str, total: int) -> str:
    """The page on those that were examined, of `total` model types."""
    every = sorted(rows, key=lambda row: row["class"])
    working = [row for row in every if "problem" not in row]
    fitted = [row for row in working if row.get("changed")]
    reasons: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in every:
        if "problem" in row:
            reasons[reason(row["problem"])].append(row)
    failures = [
        f"### {why[:1].upper()}{why[1:]}: {len(some)}\n\n"
        + markdown_table(
            ("model type", "class", "what was said"),
            [(code(row["class"]), code(row.get("model", "-")), code(row["problem"][:200])) for row in some],
        )
        for why, some in sorted(reasons.items(), key=lambda item: -len(item[1]))
    ]
    seconds = sorted(row["seconds"] for row in working)
    slow = (
        f"Half of them take less than {seconds[len(seconds) // 2]:.0f} s of CPU time, the slowest {seconds[-1]:.0f} s."
        if seconds
        else ""
    )
    table = markdown_table(
        ("model type", "class", "dtype", "parameters", "kept", "peak without optimizer", "drawn"),
        [
            (
                code(row["class"]),
                code(row["model"]),
                row["dtype"],
                size(row["parameters"]),
                size(row["kept"]),
                size(row["peak"]),
                str(row["drawn"]),
            )
            for row in working
        ],
    )
    return TEXT.format(
        count=len(every),
        total=total,
        sample=SAMPLE if len(every) < total else "",
        version=version,
        tokens=TOKENS,
        works=len(working),
        changed=len(fitted),
        fitted=listed([code(row["class"]) for row in fitted]) or "none",
        share=len(working) / max(len(every), 1),
        slow=slow,
        failures="\n\n".join(failures) or "None.",
        table=table,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Survey what the arguments name, print what does not work, and write the page once all is there."""
    parser = argparse.ArgumentParser(prog="explain_survey", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--sample", type=int, help="examine no more than so many model types")
    parser.add_argument("--minutes", type=float, default=inf, help="begin no further one after so long")
    parser.add_argument("--page", action="store_true", help="write the page of what is finished")
    options = parser.parse_intermixed_args(arguments)
    import transformers

    import ckpt_surgery.planning.target  # noqa: F401 - once, for all

    every = model_types()
    names = options.types or Random(0).sample(every, len(every))[: options.sample]
    survey(
        names,
        options.file,
        examine,
        jobs=options.jobs,
        seconds=SECONDS,
        most_bytes=MOST_BYTES,
        in_all=60 * options.minutes,
        first="gpt2",
    )
    rows = rows_of(options.file)
    failed = [row for row in rows if "problem" in row]
    for row in failed:
        print(f"{row['class']}: {row['problem']}")
    print(f"{len(rows) - len(failed)} of {plural(len(rows), 'model type')} work")
    if options.page:
        PAGE.write_text(page(rows, transformers.__version__, len(every)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
