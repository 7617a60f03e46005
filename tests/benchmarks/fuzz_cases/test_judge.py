"""The judge recognises every outcome: each treatment is wrong in one way."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from benchmarks.fuzz_cases import case as catalog
from benchmarks.fuzz_cases.case import STORES, Case, Store
from benchmarks.fuzz_cases.judge import Outcome, judge
from benchmarks.fuzz_cases.loops import LOOPS
from benchmarks.fuzz_cases.model import Feature
from benchmarks.fuzz_cases.run import Treatment, checkpointed, train, untreated
from ckpt_surgery.runtime.offload import disk_transport
from ckpt_surgery.runtime.offload.host_transport import HostTransport
from tests.benchmarks.fuzz_cases import treatments
from tests.benchmarks.fuzz_cases.treatments import replacing, running_twice
from tests.runtime.late_copies import Deferred

pytestmark = pytest.mark.torch

LATE = 4
"""The first step of late cases."""


def case_of(*features: str, scenario: str = "OneStep", seed: int = 0, **options: Any) -> Case:
    return Case(seed, scenario, features, **options)


def outcome(treatment: Treatment, *features: str, **options: Any) -> Outcome:
    return judge(case_of(*features, **options), treatment).outcome


def case_with(name: str, scenario: str = "OneStep", **variant: Any) -> Case:
    """Return the first case of a feature whose variant has these attributes."""
    cases = (case_of(name, scenario=scenario, seed=seed) for seed in range(99))
    return next(case for case in cases if variant.items() <= vars(case.make_features()[0]).items())


def test_the_same_training_is_equal() -> None:
    assert outcome(untreated, "SelfAttention", "Dropout") is Outcome.EQUAL


def test_a_lost_gradient_is_silent() -> None:
    assert outcome(replacing(treatments.without_gradient)) is Outcome.SILENT


@pytest.mark.parametrize(
    ("name", "by", "expected"),
    [
        ("LayerNorm", 1 + 1e-6, Outcome.SILENT),
        ("EmptyCache", 1 + 1e-6, Outcome.EQUAL),
        ("EmptyCache", 1 + 1e-3, Outcome.SILENT),
    ],
)
def test_gradients_are_compared_to_the_bit_except_with_caches(name: str, by: float, expected: Outcome) -> None:
    assert outcome(partial(treatments.scaling, by=by), name) is expected


def test_numbers_drawn_again_are_silent() -> None:
    assert outcome(replacing(treatments.drawing_again), "TorchNoise") is Outcome.SILENT


@pytest.mark.parametrize("name", ["BatchNorm", "SpectralNorm", "CountBuffer", "CountAttribute", "MovingAverage"])
def test_state_of_the_block_that_is_written_twice_is_reported(name: str) -> None:
    assert outcome(replacing(running_twice), name) in (Outcome.STATE, Outcome.SILENT)


def test_state_of_the_block_is_a_fault_though_nothing_reads_it() -> None:
    result = judge(case_with("CountAttribute", _variant=False), replacing(running_twice))
    assert result.outcome is Outcome.STATE
    assert result.reason.endswith(".calls")
    assert result.detail[0].endswith(".calls: 2 instead of 1")


def test_state_outside_is_harmless_where_nothing_reads_it() -> None:
    result = judge(case_with("Experts", _variant=False), replacing(running_twice))
    assert (result.outcome, result.reason) == (Outcome.HARMLESS, "Experts.load.length")
    assert result.detail[0] == "Experts.load.length: 4 instead of 2"


@pytest.mark.parametrize("place", ["block", "outside", "argument"])
@pytest.mark.parametrize(("read", "expected"), [(False, Outcome.HARMLESS), (True, Outcome.SILENT)])
def test_state_outside_is_silent_where_gradients_depend_on_it(place: str, read: bool, expected: Outcome) -> None:
    case = case_with("GrowingList", "ThreeSteps", _variant=read, _place=place)
    assert judge(case, replacing(running_twice)).outcome is expected


def test_a_generator_that_ends_elsewhere_is_state() -> None:
    result = judge(case_of(), replacing(treatments.drawing_more))
    assert (result.outcome, result.reason) == (Outcome.STATE, "torch generator")


def test_an_exception_is_a_crash() -> None:
    result = judge(case_of(), replacing(treatments.failing))
    assert (result.outcome, result.reason) == (Outcome.CRASHED, "RuntimeError: layer N of N is missing")


def test_a_refusal_is_one_where_torch_is_wrong_too() -> None:
    result = judge(case_of("BatchNorm"), replacing(treatments.refusing))
    assert result.outcome is Outcome.REFUSED
    assert result.reason == "BLOCK cannot be checkpointed: N reasons"
    assert result.names_block


def test_a_refusal_where_torch_is_right_is_a_false_alarm() -> None:
    assert outcome(replacing(treatments.refusing)) is Outcome.FALSE_ALARM
    assert outcome(replacing(treatments.refusing), "LayerNorm") is Outcome.FALSE_ALARM


def test_a_refusal_that_names_no_block_is_reported() -> None:
    assert not judge(case_of(), replacing(treatments.refusing_without_a_name)).names_block


@pytest.mark.parametrize(
    ("wrong", "refusing", "expected"),
    [
        (0, 1, Outcome.SILENT),
        (2, 4, Outcome.SILENT),
        (4, 4, Outcome.REFUSED),
        (4, 5, Outcome.REFUSED),
        (4, 6, Outcome.SILENT),
        (4, 99, Outcome.SILENT),
    ],
)
def test_what_begins_late_may_be_told_until_each_block_was_looked_at(
    wrong: int, refusing: int, expected: Outcome
) -> None:
    case = case_of("PythonDraw", scenario="LateSteps", late=LATE)
    treatment = partial(treatments.wrong_and_refusing, wrong=wrong, refusing=refusing)
    assert judge(case, treatment).outcome is expected


def test_a_training_that_ends_too_early_tells_nothing() -> None:
    treatment = partial(treatments.wrong_and_refusing, wrong=7, refusing=99)
    assert outcome(treatment, scenario="EightSteps", blocks=4) is Outcome.INVALID


def test_a_fault_that_begins_late_is_silent_where_nothing_is_looked_at() -> None:
    assert outcome(replacing(running_twice), scenario="LateHook", late=LATE) is Outcome.SILENT


def test_every_feature_can_begin_late() -> None:
    case = replace(case_with("CountAttribute", "LateSteps", _variant=True), late=LATE)
    run = train(case)
    assert run.state["layers.0.up.calls"] == run.steps + 1 - LATE
    assert judge(case, replacing(running_twice)).outcome is Outcome.SILENT


def test_another_use_cache_than_was_given_is_silent() -> None:
    assert (
        judge(case_with("UseCache", given=True), replacing(treatments.without("use_cache"))).outcome is Outcome.SILENT
    )


@pytest.mark.parametrize("options", [{}, {"every_n": 2}, {"first": 1}], ids=str)
def test_a_dropped_cache_is_silent(options: dict[str, int]) -> None:
    treatment = replacing(treatments.without("past_key_values"))
    assert outcome(treatment, "CacheOfCaller", scenario="SummedLosses", **options) is Outcome.SILENT


def test_a_cache_that_is_filled_twice_is_told() -> None:
    treatment = replacing(running_twice)
    assert outcome(treatment, "CacheOfCaller", scenario="SummedLosses") in (Outcome.SILENT, Outcome.CRASHED)


@pytest.mark.parametrize("name", LOOPS["exceptions"])
def test_what_an_error_leaves_behind_is_silent(name: str) -> None:
    treatment = replacing(treatments.forgetting_on_error)
    assert outcome(treatment, "Dropout", scenario=name) in (Outcome.SILENT, Outcome.STATE)


@pytest.mark.parametrize("name", ["ForwardInterrupted", "ForwardKeyboardInterrupt"])
def test_an_error_that_does_not_come_is_silent(name: str) -> None:
    assert outcome(replacing(treatments.swallowing), scenario=name) is Outcome.SILENT


def test_zeros_are_another_gradient_than_none() -> None:
    assert judge(case_with("Unused", _variant=False), treatments.zero_gradients).outcome is Outcome.SILENT


class Undetermined(Feature):
    """A feature whose result differs in each run of the process."""

    runs = 0

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        Undetermined.runs += 1
        return torch.sin(hidden * Undetermined.runs)


class Failing(Feature):
    """A feature that cannot run."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        raise KeyError("nothing")


class Infinite(Feature):
    """A feature that divides by zero."""

    def run(self, block: Any, hidden: Any, value: Any) -> Any:
        return hidden / 0


@pytest.mark.parametrize("kind", [Undetermined, Failing, Infinite])
def test_a_case_that_has_no_reference_counts_for_nothing(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    monkeypatch.setitem(catalog.FEATURES, kind.__name__, kind)
    monkeypatch.setitem(catalog.KIND_OF, kind.__name__, "layers")
    assert outcome(checkpointed, kind.__name__) is Outcome.INVALID


def lose(target: torch.Tensor, source: torch.Tensor) -> None:
    """Fail to copy."""
    target.zero_()


@pytest.mark.filterwarnings("ignore:the folder for offload, .*, is in memory itself")
@pytest.mark.parametrize("store", STORES)
def test_a_store_that_loses_values_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(2, "ThreeSteps", ("Dropout",), blocks=3, offload=store, save="matmul")
    assert judge(case).outcome is Outcome.EQUAL
    monkeypatch.setattr(disk_transport, "_copy", lose)
    monkeypatch.setattr(Deferred, "get", lambda store, copy: copy.tensor)
    get = HostTransport.get
    monkeypatch.setattr(HostTransport, "get", lambda store, copy: get(store, copy).zero_())
    assert judge(replace(case, save="")).outcome is not Outcome.EQUAL
