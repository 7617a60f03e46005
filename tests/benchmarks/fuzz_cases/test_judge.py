"""The judge tells every outcome: each is made by a treatment that is wrong in one way."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from benchmarks.fuzz_cases import catalog
from benchmarks.fuzz_cases.case import MODES, Case, Mode
from benchmarks.fuzz_cases.feature import Feature
from benchmarks.fuzz_cases.judge import Outcome, judge
from benchmarks.fuzz_cases.run import Treatment, checkpointed, train, untreated
from tests.benchmarks.fuzz_cases import treatments
from tests.benchmarks.fuzz_cases.treatments import replacing

pytestmark = pytest.mark.torch


def case_of(*features: str, mode: Mode = "non_reentrant", scenario: str = "OneStep", seed: int = 0) -> Case:
    return Case(seed, mode, None, 1, 2, features, scenario)


def outcome(treatment: Treatment, *features: str, mode: Mode = "non_reentrant") -> Outcome:
    return judge(case_of(*features, mode=mode), treatment).outcome


@pytest.mark.parametrize("mode", MODES)
def test_the_same_training_is_equal(mode: Mode) -> None:
    assert outcome(untreated, "SelfAttention", "Dropout", mode=mode) is Outcome.EQUAL


def test_a_lost_gradient_is_silent() -> None:
    assert outcome(replacing(treatments.without_gradient)) is Outcome.SILENT


def test_numbers_drawn_again_are_silent() -> None:
    assert outcome(replacing(treatments.drawing_again), "TorchNoise") is Outcome.SILENT


def test_state_that_is_written_twice_is_told() -> None:
    result = judge(case_of("CountingExperts"), replacing(treatments.running_twice))
    assert result.outcome is Outcome.STATE
    assert result.reason == "CountingExperts.load.length"
    assert result.detail[0] == "CountingExperts.load.length: 4 instead of 2"


def test_a_generator_that_ends_elsewhere_is_state() -> None:
    result = judge(case_of(), replacing(treatments.drawing_more))
    assert (result.outcome, result.reason) == (Outcome.STATE, "torch generator")


def test_an_exception_is_a_crash() -> None:
    result = judge(case_of(), replacing(treatments.failing))
    assert (result.outcome, result.reason) == (Outcome.CRASHED, "RuntimeError: layer N of N is missing")


def test_calls_without_end_are_a_hang() -> None:
    assert outcome(replacing(treatments.endless)) is Outcome.HANG


def test_a_refusal_is_one_where_torch_is_wrong_too() -> None:
    result = judge(case_of("CountingExperts"), replacing(treatments.refusing))
    assert result.outcome is Outcome.REFUSED
    assert result.reason == "BLOCK cannot be checkpointed: N reasons"
    assert result.names_block
    assert result.torch_gradients


def test_a_refusal_where_torch_loses_gradients_is_told_from_others() -> None:
    result = judge(case_of("StoredLogits", mode="reentrant"), replacing(treatments.refusing))
    assert result.outcome is Outcome.REFUSED
    assert not result.torch_gradients


@pytest.mark.parametrize("mode", MODES)
def test_a_refusal_where_torch_is_right_is_told_from_others(mode: Mode) -> None:
    assert outcome(replacing(treatments.refusing), mode=mode) is Outcome.REFUSED_THOUGH_TORCH_IS_RIGHT


def test_a_refusal_after_something_wrong_is_silent() -> None:
    result = judge(case_of(scenario="ThreeSteps"), replacing(treatments.refusing_late))
    assert result.outcome is Outcome.SILENT
    assert result.reason == "loss"


def test_a_refusal_that_names_no_block_is_told() -> None:
    assert not judge(case_of("CountingExperts"), replacing(treatments.refusing_without_a_name)).names_block


@pytest.mark.parametrize(
    ("mode", "by", "expected"),
    [
        ("non_reentrant", 1 + 1e-6, Outcome.SILENT),
        ("reentrant", 1 + 1e-13, Outcome.EQUAL),
        ("reentrant", 1 + 1e-6, Outcome.SILENT),
    ],
)
def test_gradients_are_compared_to_the_bit_or_within_rounding(mode: Mode, by: float, expected: Outcome) -> None:
    assert outcome(partial(treatments.scaling, by=by), mode=mode) is expected


@pytest.mark.parametrize(("mode", "expected"), [("non_reentrant", Outcome.SILENT), ("reentrant", Outcome.EQUAL)])
def test_zeros_are_no_gradient_in_reentrant_mode_only(mode: Mode, expected: Outcome) -> None:
    case = next(case for seed in range(9) if _has_unused(case := case_of("Unused", mode=mode, seed=seed)))
    assert judge(case, treatments.zero_gradients).outcome is expected


def _has_unused(case: Case) -> bool:
    (_, gradients) = train(case).notes
    return any(value is None for value in gradients[1].values())


class Undetermined(Feature):
    """Gives something else in each run of the process."""

    runs = 0

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        Undetermined.runs += 1
        return torch.sin(hidden * Undetermined.runs)


class Failing(Feature):
    """Cannot run."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        raise KeyError("nothing")


class Infinite(Feature):
    """Divides by zero."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden / 0


@pytest.mark.parametrize("kind", [Undetermined, Failing, Infinite])
def test_a_case_that_has_no_reference_counts_for_nothing(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    monkeypatch.setitem(catalog.FEATURES, kind.__name__, kind)
    assert outcome(checkpointed, kind.__name__) is Outcome.INVALID


class Amplifying(Feature):
    """Makes much of the last bit."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden * torch.remainder(hidden.detach() * 1e14, 1.0)


def nudging(model: nn.Module, case: Case) -> Callable[[], None]:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 4 * torch.finfo(parameter.dtype).eps)
    return lambda: None


def test_reentrant_mode_is_not_blamed_where_one_rounding_changes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalog.FEATURES, "Amplifying", Amplifying)
    assert outcome(nudging, "Amplifying", mode="reentrant") is Outcome.INVALID
    assert outcome(nudging, "Amplifying") is Outcome.SILENT  # the other mode has the bits of its reference
    assert outcome(replacing(treatments.without_gradient), mode="reentrant") is Outcome.SILENT


def test_variants_of_a_feature_depend_on_its_name_and_the_seed_only() -> None:
    alone, beside = case_of("Unused", seed=4), case_of("Dropout", "Unused", seed=4)
    assert vars(alone.make_features()[0])["used"] == vars(beside.make_features()[1])["used"]
    drawn = {random.Random(f"{seed} Unused").random() < 0.3 for seed in range(20)}
    assert drawn == {True, False}
