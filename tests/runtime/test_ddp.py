"""Wrapped models under DistributedDataParallel and FSDP2 on real ranks, with the cases of `ddp_script`.

`tests/distributed/test_matrix` has the checkpointing of released models under DistributedDataParallel.
"""

from __future__ import annotations

import pytest

from tests.rank_cases import Results, case_results
from tests.zoo.ddp_models import CLOSE, SIZE

pytestmark = pytest.mark.both


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return case_results("tests.runtime.ddp_script", tmp_path_factory.mktemp("ddp"), SIZE, WORLD_SIZE="7")


WRAPPED = [
    "zamba wrapped after DDP",
    "llama with unused search",
    "llama with a static graph",
    "tower twice",
    "fsdp with offload",
]


@pytest.mark.parametrize("case", WRAPPED)
def test_wrapped_blocks_train_as_one_process_on_all_batches(results: Results, case: str) -> None:
    for rank in results[case]:
        assert rank["error"] == ""
        assert rank["gradients"] > 0
        assert rank["difference"] < CLOSE
        assert rank["warnings"] == []


@pytest.mark.parametrize("case", ["ddp accumulated", "fsdp accumulated"])
def test_offload_changes_no_accumulated_gradient(results: Results, case: str) -> None:
    for rank in results[case]:
        assert rank["equal"]
        assert rank["gradients"] == 6
        with_offload, without = rank["moved"]
        assert with_offload > 0 == without


@pytest.mark.parametrize("case", ["ddp, saving", "fsdp, saving", "fsdp, saving on the host"])
def test_a_policy_keeps_the_same_in_wrappers_and_changes_no_gradient(results: Results, case: str) -> None:
    for rank in results[case]:
        assert rank["error"] == ""
        assert rank["difference"] < CLOSE
        assert rank["unmatched"] == []
        assert len(set(rank["bytes"])) == 1
        assert rank["bytes"] == results["ddp, saving"][0]["bytes"]
        assert rank["products"] < results["ddp, saving nothing"][0]["products"]


def test_plain_blocks_are_found_behind_the_classes_of_fsdp(results: Results) -> None:
    assert results["fsdp first, plain blocks"] == [{"checkpointed": [True, True, True]}] * SIZE
