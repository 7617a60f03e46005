"""The noise of a gradient of few entries is told by eight runs where two would not do; of many entries two tell it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from ckpt_surgery.measure.compare import MANY_ENTRIES, Floor
from ckpt_surgery.measure.noise import NoisyReference
from ckpt_surgery.measure.record import RunRecord

pytestmark = [pytest.mark.both]

MOVED = {0: 0.0, 1: 1e-10, 2: -1e-10, 3: 4e-8}
"""What rounding with each seed moves; all later seeds nothing."""


class Training:
    """Steps of one run, whose one noisy gradient has this many entries."""

    def __init__(self, entries: int) -> None:
        self.entries = entries
        self.seeds: list[int] = []

    def record(self, moved: float) -> RunRecord:
        gradients = {"bias": torch.full((self.entries,), 1e-10 + moved), "weight": torch.ones(MANY_ENTRIES)}
        return RunRecord(1.0, gradients)

    def __call__(self, seed: int) -> Sequence[RunRecord]:
        self.seeds.append(seed)
        return (self.record(MOVED.get(seed, 0.0)),)


def test_few_entries_that_cancel_are_judged_by_more_runs() -> None:
    training = Training(1)
    reference = NoisyReference(training)
    assert reference.verdict(0, training.record(3e-8)).ok
    assert training.seeds == [0, 0, *range(1, 9)]
    assert reference.verdict(0, training.record(1e-6)).gained == ("bias",), "far above all of them"


def test_many_entries_are_judged_by_two_runs() -> None:
    training = Training(MANY_ENTRIES)
    assert NoisyReference(training).verdict(0, training.record(3e-8)).gained == ("bias",)
    assert training.seeds == [0, 0, 1, 2]


def test_a_fault_in_another_gradient_needs_no_more_runs() -> None:
    training = Training(1)
    run = training.record(3e-8)
    run.gradients["weight"] = torch.full((MANY_ENTRIES,), 1.5)  # type: ignore[index]
    assert NoisyReference(training).verdict(0, run).wrong == ("weight",)
    assert training.seeds == [0, 0, 1, 2]


def test_what_is_within_the_noise_of_one_step_needs_no_run() -> None:
    training = Training(MANY_ENTRIES)
    reference = NoisyReference(training, likely=lambda: {"bias": Floor(1e-7), "weight": Floor(1e-7)})
    assert reference.verdict(0, training.record(3e-8)).ok
    assert training.seeds == [0]
    assert not reference.verdict(0, training.record(3e-6)).ok, "and what is not is measured"
    assert training.seeds == [0, 0, 1, 2]
