"""Cases are the same for the same seed, can be written down, and have everything that there is."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.fuzz_cases.case import FEATURES, GROUPS, SCENARIOS, STORES, Case
from benchmarks.fuzz_cases.loops import FIRST_STEPS
from benchmarks.fuzz_cases.run import train
from benchmarks.fuzz_cases.snapshot import differences

pytestmark = pytest.mark.torch

CASES = [Case.drawn(seed) for seed in range(400)]


def test_a_seed_says_everything() -> None:
    assert [Case.drawn(seed) for seed in range(400)] == CASES
    assert len({str(case) for case in CASES}) == len(CASES)
    case = Case.drawn(11)
    first, second = train(case), train(case)
    pairs = zip(first.notes, second.notes, strict=True)
    assert [found for a, b in pairs for found in differences(a.leaves, b.leaves)] == []
    assert differences(first.state, second.state) == []


def test_cases_have_every_feature_loop_and_option() -> None:
    many = [Case.drawn(seed) for seed in range(4000)]
    assert {name for case in many for name in case.features} == set(FEATURES)
    assert {case.scenario for case in many} == set(SCENARIOS)
    assert {(case.offload, case.every_n, case.first) for case in many} == {
        (offload, *partly) for offload in (None, *STORES) for partly in ((1, 0), (2, 0), (1, 1))
    }
    assert {(case.reentrant, bool(case.save)) for case in many} == {(False, True), (False, False), (True, False)}
    assert {case.late for case in many} == {0, *range(FIRST_STEPS, 9)}


def test_no_two_features_have_one_name() -> None:
    assert len(FEATURES) == sum(len(group) for group in GROUPS.values())


def test_no_two_features_fill_the_same_argument() -> None:
    names = [[FEATURES[name].argument for name in case.features if FEATURES[name].argument] for case in CASES]
    assert all(len(set(arguments)) == len(arguments) for arguments in names)


@pytest.mark.parametrize("case", CASES[:40], ids=str)
def test_what_a_case_is_written_as_can_be_read(case: Case) -> None:
    assert Case.parsed(str(case)) == case


def test_a_seed_can_be_read() -> None:
    assert Case.parsed("17") == Case.drawn(17)


@pytest.mark.parametrize(
    "text", ["", "x", "1/NoLoop//", "1/OneStep/Nothing/", "1/OneStep//offload:tape", "1/OneStep//fast"]
)
def test_what_is_no_case_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"that there is not|values to unpack"):
        Case.parsed(text)


@pytest.mark.parametrize("name", FEATURES)
def test_every_feature_trains_by_itself(name: str) -> None:
    run = train(Case(3, "ThreeSteps", (name,)))
    assert run.error is None


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_training_loop_ends(name: str) -> None:
    run = train(Case(3, name, ("Dropout",)))
    assert run.error is None
    assert run.notes
