"""Wrapped models under DistributedDataParallel and FSDP2, on real ranks: the cases of `ddp_script`, which run once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run_ranks

pytestmark = pytest.mark.both
PATIENCE = 240
CLOSE = 1e-5
Found = Mapping[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each rank found, by case."""
    folder = tmp_path_factory.mktemp("ddp")
    place = run_ranks("tests.runtime.ddp_script", folder, PATIENCE, WORLD_SIZE="7")
    told = [json.loads(Path(f"{place}-{rank}").read_text(encoding="utf-8")) for rank in range(2)]
    return {case: [rank[case] for rank in told] for case in told[0]}


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
