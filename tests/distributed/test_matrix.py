"""What released models do in DistributedDataParallel, release by release, and that `ddp_ready` and a surgery cure it.

The cases, and the two ranks they run on, are in `matrix_script`; all of them run once, at the first test.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import installed_major
from tests.distributed.matrix_script import CASES, MODELS
from tests.rank_cases import Results, case_results
from tests.zoo.ddp_models import CLOSE, SIZE

pytestmark = [pytest.mark.both, pytest.mark.slow]

FIVE = installed_major("transformers") == 5
TWICE = "Expected to mark a variable ready only once"
UNFINISHED = "Expected to have finished reduction in the prior iteration"
NO_GRADIENT = "no float tensor that requires gradient"
CHANGED = "Your training graph has changed in this iteration"
SHARED_GRADIENTS = 9  # of the tiny Zamba
TEXT_GRADIENTS, GRADIENTS = 27, 58  # of the tiny Qwen2-VL
VARYING = ["text", "image then text", "text beside image"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What each rank found, by case."""
    return case_results("tests.distributed.matrix_script", tmp_path_factory.mktemp("matrix"), SIZE)


def is_right(rank: dict[str, Any]) -> bool:
    trained: bool = rank["error"] == "" and rank["gradients"] > 0 and rank["wrong"] == [0, 0]
    return trained and rank["difference"] < CLOSE


@pytest.mark.parametrize("model", ["zamba", "zamba2", "image and video"])
def test_as_released_blocks_that_share_or_run_twice_are_marked_ready_twice(results: Results, model: str) -> None:
    for rank in results[f"{model}, reentrant"]:
        assert TWICE in rank["error"]
        assert rank["wrong"] == []


def test_as_released_a_shared_block_that_trains_alone_is_wrong_without_an_error(results: Results) -> None:
    for rank in results["zamba, shared alone, reentrant"]:
        assert rank["error"] == ""
        assert rank["wrong"] == [SHARED_GRADIENTS] * 2
        assert rank["difference"] > 0.1


@pytest.mark.parametrize("model", ["tied llama", "t5", "lora with inputs", "image", "frozen tower"])
def test_as_released_these_train_right(results: Results, model: str) -> None:
    for rank in results[f"{model}, reentrant"]:
        assert is_right(rank)
        assert rank["recomputed"][0] > 0


def test_as_released_gpt_bigcode_is_right_and_checkpoints_in_transformers_5_only(results: Results) -> None:
    for rank in results["gpt_bigcode, reentrant"]:
        assert is_right(rank)
        assert rank["recomputed"] == [2 * FIVE, 2 * FIVE]


def test_as_released_adapters_behind_frozen_embeddings_train_in_transformers_5_only(results: Results) -> None:
    for rank in results["lora, reentrant"]:
        if FIVE:
            assert is_right(rank)
        else:
            assert NO_GRADIENT in rank["error"]


def test_as_released_text_alone_leaves_gradients_of_one_rank_and_the_next_forward_raises(results: Results) -> None:
    for rank in results["text, reentrant"]:
        assert rank["wrong"] == [TEXT_GRADIENTS]
        assert UNFINISHED in rank["error"]


def test_as_released_text_after_images_is_wrong_without_an_error_in_that_step(results: Results) -> None:
    for rank in results["image then text, reentrant"]:
        assert rank["error"] == ""
        assert rank["wrong"] == [0, TEXT_GRADIENTS]


def test_as_released_text_on_one_rank_raises_there_and_leaves_the_other_waiting(results: Results) -> None:
    text, image = results["text beside image, reentrant"]
    assert text["wrong"] == [GRADIENTS]
    assert UNFINISHED in text["error"]
    assert image["error"] != ""
    assert image["wrong"] == []


@pytest.mark.parametrize("model", ["tied llama", "image", "text"])
def test_reentrant_and_a_search_for_unused_parameters_mark_blocks_ready_twice(results: Results, model: str) -> None:
    for rank in results[f"{model}, reentrant and searched"]:
        assert TWICE in rank["error"]


@pytest.mark.parametrize("mode", ["reentrant", "non_reentrant"])
def test_a_static_graph_is_no_cure_where_later_steps_use_less(results: Results, mode: str) -> None:
    for rank in results[f"image then text, {mode} and static"]:
        assert rank["error"] == ""
        assert rank["wrong"] == [0, TEXT_GRADIENTS]
        assert rank["difference"] > CLOSE


def test_with_a_static_graph_the_step_after_the_wrong_one_raises(results: Results) -> None:
    for rank in results["image, text, image, static"]:
        assert rank["wrong"] == [0, TEXT_GRADIENTS]
        assert UNFINISHED in rank["error"]


def test_a_static_graph_refuses_later_steps_that_use_more(results: Results) -> None:
    for rank in results["text then image, static"]:
        assert rank["wrong"] == [0]
        assert CHANGED in rank["error"]


@pytest.mark.parametrize("case", [case for case in CASES if ", cured" in case])
def test_after_the_cure_gradients_are_those_of_one_process_on_all_batches(results: Results, case: str) -> None:
    for rank in results[case]:
        assert is_right(rank)
        assert rank["recomputed"][0] > 0


@pytest.mark.parametrize("offload", ["", " with offload"])
def test_every_model_is_cured_and_every_second_one_with_offload_too(offload: str) -> None:
    cured = [model for model in MODELS if f"{model}, cured{offload}" in CASES]
    assert len(cured) == len(MODELS) // (2 if offload else 1)


@pytest.mark.parametrize("model", list(MODELS))
def test_unused_parameters_are_searched_for_where_batches_leave_some_out_and_nowhere_else(
    results: Results, model: str
) -> None:
    for rank in results[f"{model}, cured"]:
        assert rank["options"] == ({"find_unused_parameters": True} if model in VARYING else {})


@pytest.mark.parametrize("case", ["zamba, released switch", "image then text, released switch"])
def test_the_models_own_switch_to_non_reentrant_cures_too(results: Results, case: str) -> None:
    for rank in results[case]:
        assert is_right(rank)
        assert rank["recomputed"][0] > 0


def test_one_rank_alone_may_ask_about_a_model_that_has_failed_in_ddp(results: Results) -> None:
    first, second = results["asked inside"]
    assert UNFINISHED in first["error"]
    assert first["options"] == {"find_unused_parameters": True}
    assert second["options"] is None
    assert [first["met"], second["met"]] == [SIZE, SIZE]
