"""The noise of a gradient: two runs find it among many entries, eight among few."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, cycle

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from ckpt_surgery.measure.compare import MANY_ENTRIES, Floor
from ckpt_surgery.measure.noise import NoisyReference
from ckpt_surgery.measure.record import RunRecord

pytestmark = [pytest.mark.both]

MOVED = {0: 0.0, 1: 1e-10, 2: -1e-10, 3: 4e-8}
"""The change by rounding with each seed; later seeds change nothing."""


class Training:
    """The steps of a run whose only noisy gradient has this many entries."""

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


def test_what_is_within_the_noise_of_one_step_needs_no_run() -> None:
    training = Training(MANY_ENTRIES)
    reference = NoisyReference(training, likely=lambda: {"bias": Floor(1e-7), "weight": Floor(1e-7)})
    assert reference.verdict(0, training.record(3e-8)).ok
    assert training.seeds == [0]
    assert not reference.verdict(0, training.record(3e-6)).ok, "and what is not is measured"
    assert training.seeds == [0, 0, 1, 2]


def bent(moved: Iterator[float], seeds: list[int]) -> NoisyReference:
    """Return bfloat16 steps whose gradient moves by these when they run again."""

    def run(seed: int) -> Sequence[RunRecord]:
        seeds.append(seed)
        return (step_of(0.0 if seed else next(moved)),)

    return NoisyReference(run)


def step_of(moved: float) -> RunRecord:
    return RunRecord(1.0, {"weight": torch.full((MANY_ENTRIES,), 1 + moved, dtype=torch.bfloat16)})


def test_kernels_that_add_up_in_any_order_are_judged_by_more_runs() -> None:
    seeds: list[int] = []
    reference = bent(cycle((0.0, 0.02, 0.0, 0.0, 0.25)), seeds)
    assert reference.verdict(0, step_of(0.25)).ok
    assert seeds == [0, 0, 1, 2, *[0] * 6]
    assert not reference.verdict(0, step_of(4)).ok


def test_a_narrow_training_may_differ_now_and_then_but_not_always() -> None:
    assert bent(cycle((0.25, 0.0, 0.0)), []).irreproducible is None
    assert bent(count(0.0, 0.25), []).irreproducible is not None
