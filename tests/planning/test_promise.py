"""Plans for random budgets, applied to tiny models with data: a step keeps what was promised, to the byte."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.utils._python_dispatch import _disable_current_modes

from benchmarks.kept_bytes import kept_by_a_step, without_layer_drop
from benchmarks.survey import tiny
from ckpt_surgery.measure.generators import random_state_kept
from ckpt_surgery.planning.explain import metered
from ckpt_surgery.planning.planner import BudgetPlanner
from ckpt_surgery.planning.shapes import ShapesOnly, shapes_of
from ckpt_surgery.planning.training import TrainingSetup

pytestmark = [pytest.mark.both, pytest.mark.torch, pytest.mark.slow]

WAYS = [{"offload": offload, "save": save} for offload in (False, True) for save in (False, True)]


class UnseenHost:
    """A transport of an `Offloader` whose host copies no mode sees, as if in another memory."""

    def put(self, source: Any) -> Any:
        with _disable_current_modes():
            return source.clone()

    def finish(self, host_copy: Any) -> None:
        pass

    def start(self, host_copy: Any) -> Any:
        return host_copy

    def get(self, device_copy: Any) -> Any:
        return device_copy.clone()

    def release(self) -> None:
        pass


def kept_with(model: Any, inputs: Mapping[str, Any], choice: Any) -> int:
    """Measure the bytes that a step with data keeps with a choice, which is undone."""
    with choice.apply(model, self_check="never") as applied:
        if applied.surgery is not None and applied.surgery.offloader is not None:
            applied.surgery.offloader.transport = UnseenHost()
        return kept_by_a_step(model, inputs)


@pytest.mark.parametrize("name", ["T5ForConditionalGeneration"])
def test_plans_keep_what_they_promise(name: str) -> None:
    made = tiny(name)
    without_layer_drop(made.model)
    shapes = ShapesOnly()
    with random_state_kept():
        copied = shapes_of(made.model, shapes)

    def step() -> Any:
        with random_state_kept():
            return metered(copied, made.inputs, shapes, None)

    planner = BudgetPlanner(copied, step, 0, TrainingSetup.of("none", 1, None, "H100"))
    source, calls = Random(0), []
    for way in WAYS:
        front = planner.ways(changes=all(way.values()), **way)
        planner.memory = source.randint(front[-1].peak_bytes, planner.plain.explained.peak_bytes)
        row = planner.fastest(front).chosen
        assert kept_with(made.model, made.inputs, row.choice) == row.kept_bytes, row.choice.arguments()
        calls.append(row.choice.arguments().get("wrap_blocks", {}))
    assert any("save" in call for call in calls)
    assert any("offload" in call for call in calls)
