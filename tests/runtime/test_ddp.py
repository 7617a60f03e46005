"""Wrapped models under DistributedDataParallel and FSDP2, on real ranks: the cases of `ddp_script`, which run once."""

from __future__ import annotations

import pytest

from tests.rank_cases import Found, cases_found
from tests.runtime.ddp_script import SIZE

pytestmark = pytest.mark.both
CLOSE = 1e-5


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each rank found, by case."""
    return cases_found("tests.runtime.ddp_script", tmp_path_factory.mktemp("ddp"), SIZE, WORLD_SIZE="7")


RELEASED = ["zamba as released", "llama with unused search as released", "image and video as released"]
WRAPPED = ["zamba", "zamba wrapped after DDP", "llama with unused search", "image and video", "tower twice"]


@pytest.mark.parametrize("case", RELEASED)
def test_reentrant_checkpointing_as_released_marks_parameters_ready_twice(found: Found, case: str) -> None:
    for rank in found[case]:
        assert "mark a variable ready only once" in rank["error"]


@pytest.mark.parametrize("case", WRAPPED)
def test_wrapped_blocks_train_as_one_process_on_all_batches(found: Found, case: str) -> None:
    for rank in found[case]:
        assert rank["error"] == ""
        assert rank["gradients"] > 0
        assert rank["difference"] < CLOSE


@pytest.mark.parametrize("case", WRAPPED)
def test_under_ddp_another_mode_is_used_than_was_asked_for_and_said_once(found: Found, case: str) -> None:
    for rank in found[case]:
        assert rank["reentrant"] == [False]
        assert len(rank["warnings"]) == 1
        assert "use_reentrant=False" in rank["warnings"][0]


def test_a_process_group_alone_is_no_ddp(found: Found) -> None:
    for rank in found["no wrapper"]:
        assert rank["error"] == ""
        assert rank["reentrant"] == [True]
        assert rank["warnings"] == []


@pytest.mark.parametrize("case", ["offload", "fsdp", "fsdp first", "fsdp with offload"])
def test_offload_and_sharding_change_no_gradient(found: Found, case: str) -> None:
    for rank in found[case]:
        assert rank["error"] == ""
        assert rank["gradients"] > 0
        assert rank["difference"] < CLOSE
