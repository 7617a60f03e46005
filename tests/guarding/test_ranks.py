"""Ranks of a DistributedDataParallel that diverge are named, and no rank ever waits for another."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.guarding.ranks_script import SIZE
from tests.rank_cases import Results, case_results

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return case_results("tests.guarding.ranks_script", tmp_path_factory.mktemp("ranks"), SIZE)


@pytest.mark.parametrize("case", ["healthy", "accumulated", "averaged by hand"])
def test_ranks_that_agree_are_compared_in_checked_steps(results: Results, case: str) -> None:
    for rank in results[case]:
        assert rank["faults"] == []
        assert rank["compared"] >= 2


def test_a_rank_that_checks_alone_waits_for_nobody_and_says_nothing(results: Results) -> None:
    assert results["one rank alone"] == [{"faults": [], "compared": 0}] * SIZE


@pytest.mark.parametrize("case", ["around the wrapper", "around, and only the module is guarded"])
def test_a_loss_around_the_wrapper_is_reported(results: Results, case: str) -> None:
    for rank in results[case]:
        assert "stepped on other gradients" in rank["faults"][0]
        assert "layers.0.linear.weight" in rank["faults"][0]
        assert "through DistributedDataParallel" in rank["faults"][0]


def test_the_rank_that_diverges_is_named_on_every_rank(results: Results) -> None:
    for rank in results["clipped on one rank"]:
        assert rank["faults"][0].startswith(
            "rank 2 stepped on other gradients than the other ranks: layers.1.linear.w"
        )
    for rank in results["weights written on one rank"]:
        (fault,) = (fault for fault in rank["faults"] if "weights" in fault)
        assert fault.startswith("rank 1 trained to other weights than the other ranks: layers.0.linear.bias")
