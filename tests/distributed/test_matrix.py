"""Released models in DistributedDataParallel, release by release; `ddp_ready` and a surgery cure them.

The cases, and the two ranks they run on, are in `matrix_script`.
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
    return case_results("tests.distributed.matrix_script", tmp_path_factory.mktemp("matrix"), SIZE)


def is_right(rank: dict[str, Any]) -> bool:
    trained: bool = rank["error"] == "" and rank["gradients"] > 0 and rank["wrong"] == [0, 0]
    return trained and rank["difference"] < CLOSE


@pytest.mark.parametrize("model", ["zamba", "zamba2", "image and video"])
def test_as_released_blocks_that_share_or_run_twice_are_marked_ready_twice(results: Results, model: str) -> None:
    for rank in results[f"{model}, reentrant"]:
        assert TWICE in rank["error"]
        assert rank["wrong"] == []


SILENT = {  # no error, and these numbers of wrong gradients by step
    "zamba, shared alone, reentrant": [SHARED_GRADIENTS] * 2,
    "image then text, reentrant": [0, TEXT_GRADIENTS],
    "image then text, reentrant and static": [0, TEXT_GRADIENTS],
    "image then text, non_reentrant and static": [0, TEXT_GRADIENTS],
}
LOUD = {  # an error, after these numbers of wrong gradients by step
    "text, reentrant": ([TEXT_GRADIENTS], UNFINISHED),
    "image, text, image, static": ([0, TEXT_GRADIENTS], UNFINISHED),
    "text then image, static": ([0], CHANGED),
}


@pytest.mark.parametrize("case", SILENT)
def test_as_released_gradients_are_wrong_without_an_error(results: Results, case: str) -> None:
    for rank in results[case]:
        assert (rank["error"], rank["wrong"]) == ("", SILENT[case])
        assert rank["difference"] > CLOSE


@pytest.mark.parametrize("case", LOUD)
def test_as_released_an_error_comes_after_the_wrong_step(results: Results, case: str) -> None:
    wrong, error = LOUD[case]
    for rank in results[case]:
        assert rank["wrong"] == wrong
        assert error in rank["error"]


@pytest.mark.parametrize(
    "model", ["tied llama", "t5", "gpt_bigcode", "lora", "lora with inputs", "image", "frozen tower"]
)
def test_as_released_these_train_right(results: Results, model: str) -> None:
    for rank in results[f"{model}, reentrant"]:
        if model == "lora" and not FIVE:  # its frozen embeddings give nothing that needs gradient
            assert NO_GRADIENT in rank["error"]
            continue
        assert is_right(rank)
        if model == "gpt_bigcode":  # it checkpoints in transformers 5 only
            assert rank["recomputed"] == [2 * FIVE, 2 * FIVE]
        elif model != "lora":
            assert rank["recomputed"][0] > 0


def test_as_released_text_on_one_rank_raises_there_and_the_other_waits(results: Results) -> None:
    text, image = results["text beside image, reentrant"]
    assert text["wrong"] == [GRADIENTS]
    assert UNFINISHED in text["error"]
    assert image["error"] != ""
    assert image["wrong"] == []


@pytest.mark.parametrize("model", ["tied llama", "image", "text"])
def test_reentrant_and_a_search_mark_blocks_ready_twice(results: Results, model: str) -> None:
    for rank in results[f"{model}, reentrant and searched"]:
        assert TWICE in rank["error"]


SWITCHED = ["zamba, released switch", "image then text, released switch"]


@pytest.mark.parametrize("case", [*(case for case in CASES if ", cured" in case), *SWITCHED])
def test_after_the_cure_gradients_are_those_of_one_process_on_all_batches(results: Results, case: str) -> None:
    for rank in results[case]:
        assert is_right(rank)
        assert rank["recomputed"][0] > 0


@pytest.mark.parametrize("offload", ["", " with offload"])
def test_every_model_is_cured_and_every_second_one_with_offload_too(offload: str) -> None:
    cured = [model for model in MODELS if f"{model}, cured{offload}" in CASES]
    assert len(cured) == len(MODELS) // (2 if offload else 1)


@pytest.mark.parametrize("model", list(MODELS))
def test_unused_parameters_are_searched_for_where_there_are_some(results: Results, model: str) -> None:
    for rank in results[f"{model}, cured"]:
        assert rank["options"] == ({"find_unused_parameters": True} if model in VARYING else {})


def test_one_rank_alone_may_ask_about_a_model_that_has_failed_in_ddp(results: Results) -> None:
    first, second = results["asked inside"]
    assert UNFINISHED in first["error"]
    assert first["options"] == {"find_unused_parameters": True}
    assert second["options"] is None
    assert [first["met"], second["met"]] == [SIZE, SIZE]
