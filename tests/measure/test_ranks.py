"""Level "ranks": a fault planted on one rank is the verdict of every rank.

`rank_script` has the cases and their processes; all of them run once, at the first test.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run_ranks

pytestmark = [pytest.mark.torch, pytest.mark.slow]
PATIENCE = 240
MODES = ("non_reentrant", "reentrant")
Results = Mapping[int, Mapping[str, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Launch the ranks once; return the results of each by number of ranks and case."""
    folder = tmp_path_factory.mktemp("ranks")
    place = run_ranks("tests.measure.rank_script", folder, PATIENCE)
    by_size = {
        size: [json.loads(Path(f"{place}-{size}-{rank}").read_text(encoding="utf-8")) for rank in range(size)]
        for size in (2, 4)
    }
    return {size: {case: [rank[case] for rank in ranks] for case in ranks[0]} for size, ranks in by_size.items()}


def faults(reports: list[dict[str, Any]], mode: str) -> list[dict[str, Any]]:
    """Return the faults of this level, which all ranks have in common."""
    by_rank = [
        [fault for entry in report["modes"] if entry["mode"] == mode for fault in entry["faults"]]
        for report in reports
    ]
    first, *others = [[fault for fault in found if fault["level"] == "ranks"] for found in by_rank]
    assert all(other == first for other in others)
    return first


def outcomes(report: Mapping[str, Any]) -> list[str]:
    return [mode["outcomes"]["ranks"] for mode in report["modes"]]


@pytest.mark.parametrize(
    ("size", "case"),
    [(2, "healthy"), (2, "bucket views"), (2, "static graph"), (2, "shared, static graph"), (4, "healthy")],
)
def test_a_wrapped_model_with_dropout_is_what_one_process_would_get(results: Results, size: int, case: str) -> None:
    for report in results[size][case]:
        assert report["status"] == "ok"
        assert outcomes(report) == ["ok", "ok"]
        assert report["model"] == "Model"


SAME_GRADIENTS = "the same gradients on every rank"
MEAN = "the mean of what each rank computes alone"
EVERYWHERE = "level run to hold on every rank"
READY_TWICE = "on every rank: backward raised RuntimeError: Expected to mark a variable ready only once"

FAULTS = [
    pytest.param(
        2,
        "all skip",
        MODES,
        [
            (SAME_GRADIENTS, "other values on rank 1 than on rank 0 (7 of 8 gradients)", ""),
            (MEAN, "on every rank", ""),
        ],
        id="gradients that are not summed",
    ),
    pytest.param(
        2,
        "one skips",
        MODES,
        [("a step that ends", "on rank 0: backward raised RuntimeError: ", "they do not add up the same gradients")],
        id="a rank that leaves the wrapper out is not waited for without end",
    ),
    pytest.param(
        2,
        "another weight",
        MODES,
        [("the same weights on every rank", "other values on rank 1 than on rank 0 (1 of 8 parameters)", "")],
        id="a weight that one rank has alone",
    ),
    pytest.param(
        2,
        "another parameter",
        MODES,
        [("the same parameters on every rank", "others on rank 1", "")],
        id="a parameter that one rank froze",
    ),
    pytest.param(
        4,
        "scaled",
        MODES,
        [
            (SAME_GRADIENTS, "other values on rank 2 than on rank 0 (1 of 8 gradients)", ""),
            (MEAN, "a relative error up to 0.5 on rank 2 (1 of 8 gradients)", ""),
        ],
        id="a gradient that a hook scales on one rank",
    ),
    pytest.param(
        2,
        "scaled on both",
        MODES,
        [(MEAN, "a relative error up to 0.5 on every rank (1 of 8 gradients)", "")],
        id="equal gradients that no process alone would get",
    ),
    pytest.param(
        2,
        "one rank only",
        ["reentrant"],
        [("a step that ends", READY_TWICE, "find_unused_parameters")],
        id="reentrant mode with a search for unused parameters",
    ),
    pytest.param(
        2,
        "one rank only, not looked for",
        ["non_reentrant"],
        [("a step that ends", "on rank 1: ", "")],
        id="a parameter of one rank that DDP does not look for",
    ),
    pytest.param(
        2,
        "shared",
        ["reentrant"],
        [("a step that ends", READY_TWICE, "In reentrant mode each block that uses a parameter reports its gradient")],
        id="a shared parameter that is marked ready twice",
    ),
    pytest.param(
        2,
        "fails on rank 1",
        MODES,
        [(EVERYWHERE, "a fault on rank 1: ", "")],
        id="a step that breaks on one rank",
    ),
    pytest.param(
        2,
        "irreproducible on rank 1",
        MODES,
        [(EVERYWHERE, "a fault on rank 1: expected two equal runs without checkpointing, saw ", "")],
        id="a model that differs from itself on one rank",
    ),
]
SUBJECTS = {
    "another weight": ["layers.0.linear.weight"],
    "another parameter": ["last.bias"],
    "scaled": ["last.weight"],
    "scaled on both": ["last.weight"],
}


@pytest.mark.parametrize(("size", "case", "modes", "expected"), FAULTS)
def test_a_fault_of_some_ranks_is_the_verdict_of_all_in_the_modes_it_harms(
    results: Results, size: int, case: str, modes: list[str], expected: list[tuple[str, str, str]]
) -> None:
    reports = results[size][case]
    for mode in modes:
        found = faults(reports, mode)
        assert [fault["expected"] for fault in found] == [wanted for wanted, _, _ in expected]
        for fault, (_, seen, cause) in zip(found, expected, strict=True):
            assert seen in fault["seen"]
            assert cause in fault["cause"]
            assert fault["subjects"] == SUBJECTS.get(case, fault["subjects"])
    sound = {entry["mode"] for entry in reports[0]["modes"]} - {*modes}
    assert not [fault for mode in sound for fault in faults(reports, mode)]


def test_gradients_that_are_wrong_without_the_wrapper_are_not_blamed_on_it(results: Results) -> None:
    blamed = faults(results[2]["forgetting"], "reentrant")
    assert blamed
    assert {fault["cause"] for fault in blamed} == {"Gradients are wrong without the wrapper too."}


def test_a_reference_that_one_rank_does_not_have_is_an_error_on_all(results: Results) -> None:
    first, second = (report["error"] for report in results[2]["not a number"])
    assert first == second
    assert first.startswith("on rank 1: in the run of Model without checkpointing the loss is nan")


def test_a_bare_model_in_a_process_group_is_not_judged_and_reported_so(results: Results) -> None:
    for report in results[2]["bare"]:
        assert report["status"] == "ok"
        assert outcomes(report) == ["skipped", "skipped"]
        reasons = [[skip["reason"] for skip in mode["skips"]] for mode in report["modes"]]
        assert reasons == [["Model is not wrapped in DistributedDataParallel"]] * 2


def test_one_rank_alone_can_verify_a_wrapped_model_without_the_level(results: Results) -> None:
    assert results[2]["alone"][1]["status"] == "ok"
    assert outcomes(results[2]["alone"][1]) == ["skipped", "skipped"]


def test_ranks_that_never_come_are_an_error_on_those_that_wait(results: Results) -> None:
    assert results[2]["one is missing"][0]["error"].startswith("a rank is missing: ")


@pytest.mark.parametrize("case", ["left as found", "left as found, bucket views"])
def test_training_goes_on_with_the_wrapper_as_if_nothing_had_been_verified(results: Results, case: str) -> None:
    assert [rank["same"] for rank in results[2][case]] == [True, True]
