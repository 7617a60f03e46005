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

pytestmark = pytest.mark.torch
PATIENCE = 240
ALL = ["non_reentrant", "reentrant"]
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


def faults(report: Mapping[str, Any], mode: str) -> list[dict[str, Any]]:
    (mode_report,) = [entry for entry in report["modes"] if entry["mode"] == mode]
    return [fault for fault in mode_report["faults"] if fault["level"] == "ranks"]


def outcomes(report: Mapping[str, Any]) -> list[str]:
    return [mode["outcomes"]["ranks"] for mode in report["modes"]]


def the_fault(reports: list[dict[str, Any]], mode: str) -> dict[str, Any]:
    (fault,) = faults(reports[0], mode)
    assert all(faults(report, mode) == [fault] for report in reports)
    return fault


@pytest.mark.parametrize("case", ["healthy", "bucket views", "small buckets", "static graph"])
def test_a_wrapped_model_with_dropout_is_what_one_process_would_get(results: Results, case: str) -> None:
    for report in results[2][case]:
        assert report["status"] == "ok"
        assert outcomes(report) == ["ok", "ok"]
        assert report["model"] == "Model"


def test_four_ranks_agree_too(results: Results) -> None:
    assert [outcomes(report) for report in results[4]["healthy"]] == [["ok", "ok"]] * 4


@pytest.mark.parametrize("mode", ALL)
def test_gradients_that_are_not_summed_are_other_ones_on_each_rank(results: Results, mode: str) -> None:
    reports = results[2]["all skip"]
    unequal, unlike = faults(reports[0], mode)
    assert unequal["expected"] == "the same gradients on every rank"
    assert unequal["seen"] == "other values on rank 1 than on rank 0 (7 of 8 gradients)"
    assert "layers.0.linear.weight" in unequal["subjects"]
    assert unlike["expected"] == "the mean of what each rank computes alone"
    assert "on every rank" in unlike["seen"]
    assert faults(reports[1], mode) == [unequal, unlike]


@pytest.mark.parametrize("mode", ALL)
def test_a_rank_that_leaves_the_wrapper_out_is_not_waited_for_without_end(results: Results, mode: str) -> None:
    fault = the_fault(results[2]["one skips"], mode)
    assert fault["expected"] == "a step that ends"
    assert fault["seen"].startswith("on rank 0: backward raised RuntimeError: ")
    assert fault["cause"] == "The other ranks' steps end: they do not add up the same gradients."


@pytest.mark.parametrize("mode", ALL)
def test_a_weight_that_one_rank_has_alone_is_named(results: Results, mode: str) -> None:
    fault = the_fault(results[2]["another weight"], mode)
    assert fault["subjects"] == ["layers.0.linear.weight"]
    assert fault["expected"] == "the same weights on every rank"
    assert fault["seen"] == "other values on rank 1 than on rank 0 (1 of 8 parameters)"


@pytest.mark.parametrize("mode", ALL)
def test_a_parameter_that_one_rank_froze_is_named(results: Results, mode: str) -> None:
    fault = the_fault(results[2]["another parameter"], mode)
    assert fault["subjects"] == ["last.bias"]
    assert (fault["expected"], fault["seen"]) == ("the same parameters on every rank", "others on rank 1")


@pytest.mark.parametrize("mode", ALL)
@pytest.mark.parametrize(("size", "rank"), [(2, 1), (4, 2)])
def test_a_gradient_that_a_hook_scales_on_one_rank_is_named_with_the_rank(
    results: Results, mode: str, size: int, rank: int
) -> None:
    reports = results[size]["scaled"]
    unequal, unlike = faults(reports[0], mode)
    assert unequal["subjects"] == unlike["subjects"] == ["last.weight"]
    assert unequal["seen"] == f"other values on rank {rank} than on rank 0 (1 of 8 gradients)"
    assert unlike["seen"] == f"a relative error up to 0.5 on rank {rank} (1 of 8 gradients)"
    assert all(faults(report, mode) == [unequal, unlike] for report in reports)


@pytest.mark.parametrize("mode", ALL)
def test_equal_gradients_on_all_ranks_are_wrong_if_one_process_differs(results: Results, mode: str) -> None:
    fault = the_fault(results[2]["scaled on both"], mode)
    assert fault["subjects"] == ["last.weight"]
    assert fault["expected"] == "the mean of what each rank computes alone"
    assert fault["seen"] == "a relative error up to 0.5 on every rank (1 of 8 gradients)"


@pytest.mark.parametrize("size", [2, 4])
def test_a_parameter_of_one_rank_is_averaged_over_all_if_not_reentrant(results: Results, size: int) -> None:
    for report in results[size]["one rank only"]:
        assert faults(report, "non_reentrant") == []
        assert outcomes(report)[0] == "ok"


@pytest.mark.parametrize("size", [2, 4])
def test_reentrant_mode_does_not_go_with_looking_for_unused_parameters(results: Results, size: int) -> None:
    fault = the_fault(results[size]["one rank only"], "reentrant")
    assert "on every rank: backward raised RuntimeError: Expected to mark a variable ready only once" in fault["seen"]
    assert "find_unused_parameters" in fault["cause"]


def test_a_parameter_of_one_rank_that_ddp_does_not_look_for_is_a_fault(results: Results) -> None:
    fault = the_fault(results[2]["one rank only, not looked for"], "non_reentrant")
    assert fault["expected"] == "a step that ends"
    assert fault["seen"].startswith("on rank 1: ")


def test_a_shared_parameter_is_marked_ready_twice_in_reentrant_mode_alone(results: Results) -> None:
    fault = the_fault(results[2]["shared"], "reentrant")
    assert "on every rank: backward raised RuntimeError: Expected to mark a variable ready only once" in fault["seen"]
    assert fault["cause"].startswith("In reentrant mode each block that uses a parameter reports its gradient")
    assert outcomes(results[2]["shared"][0]) == ["ok", "failed"]


def test_a_static_graph_is_the_remedy_for_shared_parameters(results: Results) -> None:
    assert [report["status"] for report in results[2]["shared, static graph"]] == ["ok", "ok"]


@pytest.mark.parametrize("mode", ALL)
def test_a_step_that_breaks_on_one_rank_alone_fails_on_all(results: Results, mode: str) -> None:
    fault = the_fault(results[2]["fails on rank 1"], mode)
    assert fault["expected"] == "level run to hold on every rank"
    assert fault["seen"].startswith("a fault on rank 1: ")
    assert "the disk is full" in fault["seen"]


@pytest.mark.parametrize("mode", ALL)
def test_a_model_that_differs_from_itself_on_one_rank_alone_fails_on_all(results: Results, mode: str) -> None:
    reports = results[2]["irreproducible on rank 1"]
    fault = the_fault(reports, mode)
    assert fault["expected"] == "level run to hold on every rank"
    assert fault["seen"].startswith("a fault on rank 1: expected two equal runs without checkpointing, saw ")
    assert [report["status"] for report in reports] == ["failed", "failed"]


def test_gradients_that_are_wrong_without_the_wrapper_are_not_blamed_on_it(results: Results) -> None:
    for report in results[2]["forgetting"]:
        blamed = faults(report, "reentrant")
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


def test_without_a_process_group_nothing_is_compared_and_nothing_said() -> None:
    from ckpt_surgery.measure.kinds import SkipKind
    from ckpt_surgery.measure.ranks import first_problem, obstacle, unwrapped
    from tests.measure import toys

    model = toys.model_of(toys.Layer)
    assert obstacle(model) is SkipKind.ONE_PROCESS
    assert unwrapped(model) is model
    assert first_problem(model, "mine") == "mine"
    assert first_problem(model, None) is None
