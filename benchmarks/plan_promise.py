"""Plans for random budgets, applied to tiny real models: what a step keeps, held against what the plan promised.

    python -m benchmarks.plan_promise plans.jsonl --jobs 2

Each plan is made on shapes, applied to a model with data, measured by the meter that `verify` uses, and undone. What
goes to host memory is copied where that meter does not look. Exits with 1 where a step keeps more than was promised.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from random import Random
from typing import Any

from benchmarks.kept_bytes import kept_by_a_step, without_layer_drop
from benchmarks.survey import MODELS, Row, Survey, tiny

PLANS = 28
"""For each class."""
CLASSES = (
    "LlamaForCausalLM", "GPT2LMHeadModel", "MixtralForCausalLM", "Qwen2MoeForCausalLM", "T5ForConditionalGeneration",
    "WhisperForConditionalGeneration", "BartForConditionalGeneration", "LlavaForConditionalGeneration",
    "Qwen2VLForConditionalGeneration", "ViTForImageClassification",
)  # fmt: skip
"""Dense models, mixtures of experts, encoders with decoders, vision with language."""


class Promise(StrEnum):
    """The outcome of one plan."""

    EXACT = "keeps what was promised"
    LESS = "keeps less than was promised"
    MORE = "keeps more than was promised"
    DRAWN = "keeps more, by what weights decide"
    NONE = "no way fits"


def measure(name: str, plans: int = PLANS) -> Row:
    """Make plans for one class: their calls, what was promised, and what a step kept."""
    made = tiny(name)
    without_layer_drop(made.model)
    return {"plans": list(_plans(made.model, made.inputs, plans))}


def _plans(model: Any, inputs: Mapping[str, Any], plans: int) -> Iterator[Row]:
    """Ask one planner for all budgets, so that it meters each step once."""
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
            yield {"memory": planner.memory, "became": Promise.NONE}
            continue
        row, kept = made.chosen, kept_with(model, inputs, made.chosen.choice)
        if kept <= row.kept_bytes:
            became = Promise.EXACT if kept == row.kept_bytes else Promise.LESS
        else:
            became = Promise.DRAWN if made.explanation.drawn else Promise.MORE
        calls = row.choice.arguments()
        yield {"memory": planner.memory, "calls": calls, "promised": row.kept_bytes, "kept": kept, "became": became}


def kept_with(model: Any, inputs: Mapping[str, Any], choice: Any) -> int:
    """Measure the bytes that a step with data keeps with a choice, which is undone."""
    with choice.apply(model, self_check="never") as applied:
        if applied.surgery is not None and applied.surgery.offloader is not None:
            applied.surgery.offloader.transport = UnseenHost()
        return kept_by_a_step(model, inputs)


class UnseenHost:
    """A transport of an `Offloader` whose host copies no mode sees, as if in another memory."""

    def put(self, source: Any) -> Any:
        """Copy `source` at once, unseen."""
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():
            return source.clone()

    def finish(self, host_copy: Any) -> None:
        """Do nothing: the copy is made."""

    def start(self, host_copy: Any) -> Any:
        """Copy nothing before it is asked for."""
        return host_copy

    def get(self, device_copy: Any) -> Any:
        """Make a copy that the meter sees."""
        return device_copy.clone()

    def release(self) -> None:
        """Do nothing: nothing is held."""


def counts(rows: Iterable[Row]) -> Counter[str]:
    """Count how many plans became what; classes that are not built by themselves."""
    found: Counter[str] = Counter()
    for row in rows:
        found.update([each["became"] for each in row["plans"]] if "plans" in row else ["not built"])
    return found


def conclude(rows: Sequence[Row], known: int, page: bool) -> bool:
    """Print the counts and each plan that keeps more, and tell whether there is one."""
    for row in rows:
        for each in row.get("plans", ()):
            if each["became"] in (Promise.MORE, Promise.DRAWN):
                print(f"{row['case']}: {each}")
        if "problem" in row:
            print(f"{row['case']}: {row['problem']}")
    found = counts(rows)
    for became, count in found.most_common():
        print(f"{count:5} {became}")
    return found[Promise.MORE] > 0


SURVEY = Survey("plan_promise", __doc__, lambda: CLASSES, measure, conclude, MODELS, 1200.0, shuffled=False)
if __name__ == "__main__":
    sys.exit(SURVEY.main())
