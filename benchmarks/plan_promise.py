"""Plans for random budgets, applied to tiny real models: what a step keeps, held against what the plan promised.

    python -m benchmarks.plan_promise plans.jsonl [--plans 40] [--jobs 2] [CLASS ...]

Each plan is made on shapes, applied to a model with data, measured by the meter that `verify` uses, and undone. What
goes to host memory is copied where that meter does not look. Exits with 1 where a step keeps more than was promised.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.class_survey import rows_of, survey
from benchmarks.kept_bytes import kept_by_a_step, without_layer_drop

SECONDS = 1200.0
"""What one class may take."""
CLASSES = (
    "LlamaForCausalLM",
    "GPT2LMHeadModel",
    "MixtralForCausalLM",
    "Qwen2MoeForCausalLM",
    "T5ForConditionalGeneration",
    "WhisperForConditionalGeneration",
    "BartForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "ViTForImageClassification",
)
"""Dense models, mixtures of experts, encoders with decoders, vision with language."""


class Promise(StrEnum):
    """What became of one plan."""

    EXACT = "keeps what was promised"
    LESS = "keeps less than was promised"
    MORE = "keeps more than was promised"
    DRAWN = "keeps more, by what weights decide"


def examine(name: str, plans: int) -> dict[str, Any]:
    """So many plans for one class: their calls, what was promised, and what a step kept."""
    from ckpt_surgery import tiny_model
    from ckpt_surgery.tiny import model_classes

    entry = model_classes()[name]
    tiny = tiny_model(entry.load(), entry.config_class(entry.model_type))
    model = tiny.model.train()
    without_layer_drop(model)
    return {"plans": list(_plans(model, tiny.inputs, plans))}


def _plans(model: Any, inputs: Mapping[str, Any], plans: int) -> Iterable[dict[str, Any]]:
    """The planner is asked for all budgets, so that it meters each step once, as `plan` does for one of them."""
    from ckpt_surgery.errors import DoesNotFitError
    from ckpt_surgery.measure.generators import random_state_kept
    from ckpt_surgery.planning.explain import metered
    from ckpt_surgery.planning.planner import BudgetPlanner
    from ckpt_surgery.planning.shapes import ShapesOnly, shapes_of
    from ckpt_surgery.planning.training import training_of

    shapes = ShapesOnly()
    with random_state_kept():
        copied = shapes_of(model, shapes)

    def step() -> Any:
        with random_state_kept():
            return metered(copied, inputs, shapes, None)

    planner = BudgetPlanner(copied, step, 0, training_of("none", 1, None, "H100"))
    source = Random(0)
    every = [(offload, save) for offload in (False, True) for save in (False, True)]
    ways = {each: planner.ways(offload=each[0], changes=each == (True, True), save=each[1]) for each in every}
    for number in range(plans):
        front = ways[every[number % len(every)]]
        planner.memory = source.randint(front[-1].peak_bytes, planner.plain.explained.peak_bytes)
        try:
            made = planner.fastest(front)
        except DoesNotFitError:
            yield {"memory": planner.memory, "calls": None}
            continue
        row = made.chosen
        kept = kept_with(model, inputs, row.choice)
        yield {
            "memory": planner.memory,
            "calls": row.choice.arguments(),
            "promised": row.kept_bytes,
            "kept": kept,
            "became": _became(row.kept_bytes, kept, drawn=made.explanation.drawn),
        }


def kept_with(model: Any, inputs: Mapping[str, Any], choice: Any) -> int:
    """The bytes that a step with data keeps with a choice, which is undone."""
    with choice.apply(model, self_check="never") as applied:
        if applied.surgery is not None and applied.surgery.offloader is not None:
            applied.surgery.offloader.transport = UnseenHost()
        return kept_by_a_step(model, inputs)


def _became(promised: int, kept: int, *, drawn: int) -> Promise:
    if kept <= promised:
        return Promise.EXACT if kept == promised else Promise.LESS
    return Promise.DRAWN if drawn else Promise.MORE


class UnseenHost:
    """A transport of an `Offloader` whose copies no mode sees, as if they were in another memory."""

    def put(self, source: Any) -> Any:
        """A copy of `source`."""
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():
            return source.clone()

    def finish(self, host_copy: Any) -> None:
        """It is done."""

    def start(self, host_copy: Any) -> Any:
        """A copy of the copy, which is seen."""
        return host_copy.clone()

    def get(self, device_copy: Any) -> Any:
        """The same."""
        return device_copy

    def release(self) -> None:
        """Nothing is held."""


def counts(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """How many plans became what; budgets that nothing fits, and classes that are not built, by themselves."""
    found: Counter[str] = Counter()
    for row in rows:
        found.update([each.get("became", "no way fits") for each in row["plans"]] if "plans" in row else ["not built"])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Survey what the arguments name, and print the counts and each plan that keeps more."""
    parser = argparse.ArgumentParser(prog="plan_promise", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("classes", nargs="*")
    parser.add_argument("--plans", type=int, default=40, help="for each class")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_intermixed_args(arguments)
    import transformers  # noqa: F401 - once, for all

    import ckpt_surgery.planning.planner
    import ckpt_surgery.tiny  # noqa: F401

    examined = partial(examine, plans=options.plans)
    survey(options.classes or CLASSES, options.file, examined, jobs=options.jobs, seconds=SECONDS)
    rows = rows_of(options.file)
    for row in rows:
        for each in row.get("plans", ()):
            if each.get("became") in (Promise.MORE, Promise.DRAWN):
                print(f"{row['class']}: {each}")
        if "problem" in row:
            print(f"{row['class']}: {row['problem']}")
    found = counts(rows)
    for became, count in found.most_common():
        print(f"{count:5} {became}")
    return 1 if found[Promise.MORE] else 0


if __name__ == "__main__":
    sys.exit(main())
