"""Cases are the same for the same seed, can be written down, and get simpler one thing at a time."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")

from benchmarks.fuzz_cases.case import MODES, STORES, Case
from benchmarks.fuzz_cases.catalog import FEATURES, GROUPS, SCENARIOS
from benchmarks.fuzz_cases.feature import Feature, Output
from benchmarks.fuzz_cases.model import FuzzBlock
from benchmarks.fuzz_cases.run import train
from benchmarks.fuzz_cases.snapshot import differences

pytestmark = pytest.mark.torch

CASES = [Case.drawn(seed) for seed in range(400)]


def test_a_seed_says_everything() -> None:
    assert [Case.drawn(seed) for seed in range(400)] == CASES
    assert len({str(case) for case in CASES}) == len(CASES)
    case = Case.drawn(11)
    first, second = train(case), train(case)
    assert [differences(a, b) for (_, a), (_, b) in zip(first.notes, second.notes, strict=True)] == [[]] * len(
        first.notes
    )
    assert differences(first.state, second.state) == []


def test_cases_have_every_feature_loop_and_option() -> None:
    many = [Case.drawn(seed) for seed in range(4000)]
    assert {name for case in many for name in case.features} == set(FEATURES)
    assert {case.scenario for case in many} == set(SCENARIOS)
    assert {(case.mode, case.offload, case.every_n) for case in many} == {
        (mode, offload, every_n) for mode in MODES for offload in (None, *STORES) for every_n in (1, 2)
    }
    assert {(case.mode, bool(case.save)) for case in many} == {
        ("non_reentrant", True),
        ("non_reentrant", False),
        ("reentrant", False),
    }


def test_no_two_features_have_one_name_and_each_says_what_it_does() -> None:
    assert len(FEATURES) == sum(len(group) for group in GROUPS.values())
    assert all(kind.__doc__ for kind in (*FEATURES.values(), *SCENARIOS.values()))


def test_a_mode_can_be_given() -> None:
    assert {Case.drawn(seed, "reentrant").mode for seed in range(20)} == {"reentrant"}
    assert Case.drawn(3, "reentrant").features == Case.drawn(3).features


def test_hooks_on_one_of_several_results_are_left_to_the_non_reentrant_mode() -> None:
    hooked = [case for case in map(Case.drawn, range(4000)) if "OutputGradientHook" in case.features]
    with_outputs = [case.mode for case in hooked if not set(GROUPS["outputs"]).isdisjoint(case.features)]
    assert set(with_outputs) == {"non_reentrant"}
    assert {case.mode for case in hooked} == set(MODES)


def test_no_two_features_fill_the_same_argument() -> None:
    names = [[FEATURES[name].argument for name in case.features if FEATURES[name].argument] for case in CASES]
    assert all(len(set(arguments)) == len(arguments) for arguments in names)


@pytest.mark.parametrize("case", CASES[:40], ids=str)
def test_what_a_case_is_written_as_can_be_read(case: Case) -> None:
    assert Case.parsed(str(case)) == case


def test_a_seed_can_be_read() -> None:
    assert Case.parsed("17") == Case.drawn(17)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1/reentrant/device/1/2/NoLoop/",
        "1/reentrant/device/1/2/OneStep/Nothing",
        "1/reentrant/tape/1/2/OneStep/",
    ],
)
def test_what_is_no_case_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"names a mode|names a store|values to unpack"):
        Case.parsed(text)


def test_simpler_cases_have_one_thing_less() -> None:
    case = Case(1, "reentrant", "cpu", 2, 3, ("Dropout", "LayerNorm"), "ThreeSteps")
    assert [str(simpler).partition("/")[2] for simpler in case.simpler()] == [
        "reentrant/cpu/2/3/ThreeSteps/LayerNorm",
        "reentrant/cpu/2/3/ThreeSteps/Dropout",
        "reentrant/cpu/2/3/OneStep/Dropout+LayerNorm",
        "reentrant/device/2/3/ThreeSteps/Dropout+LayerNorm",
        "reentrant/cpu/1/3/ThreeSteps/Dropout+LayerNorm",
        "reentrant/cpu/2/2/ThreeSteps/Dropout+LayerNorm",
    ]
    assert Case(1, "reentrant", None, 1, 2, (), "OneStep").simpler() == []
    saving = Case(1, "non_reentrant", "late", 1, 2, (), "OneStep", ("matmul:2", "aten.tanh"))
    assert [str(simpler) for simpler in saving.simpler()] == [
        "1/non_reentrant/device+matmul:2+aten.tanh/1/2/OneStep/",
        "1/non_reentrant/late/1/2/OneStep/",
    ]


@pytest.mark.parametrize("name", FEATURES)
def test_every_feature_trains_by_itself(name: str) -> None:
    run = train(Case(3, "non_reentrant", None, 1, 2, (name,), "ThreeSteps"))
    assert run.error is None


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_training_loop_ends(name: str) -> None:
    run = train(Case(3, "non_reentrant", None, 1, 2, ("Dropout",), name))
    assert run.error is None
    assert run.notes


def test_features_that_are_not_related_build_other_attributes() -> None:
    builders: dict[str, set[type[Feature]]] = {}
    for kind in FEATURES.values():
        relative = [base for base in kind.__mro__ if issubclass(base, Feature) and base not in (Feature, Output)][-1]
        for seed in range(8):  # of either variant
            block = FuzzBlock(0)
            before = attributes(block)
            kind(random.Random(seed)).build(block, 0)
            for attribute in attributes(block) - before:
                builders.setdefault(attribute, set()).add(relative)
    assert builders
    assert {attribute: kinds for attribute, kinds in builders.items() if len(kinds) > 1} == {}


def attributes(block: FuzzBlock) -> set[str]:
    return {*vars(block), *block._parameters, *block._buffers, *block._modules}
