"""`watch_ddp` and `call_through_ddp` on two real ranks, with the cases of `watch_script`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ckpt_surgery.distributed.ddp import call_through_ddp, watch_ddp
from ckpt_surgery.errors import DistributedError
from tests.distributed.watch_script import HARMLESS, KINDS, SECONDS, SIZE, WRONG, scenarios
from tests.rank_cases import Results, case_results

pytestmark = [pytest.mark.torch, pytest.mark.slow]

HARMLESS_CASES = [f"{name}, {kind}" for kind in KINDS for name in scenarios(kind) if name in HARMLESS]
WRONG_CASES = [f"{name}, {kind}" for kind in KINDS for name in scenarios(kind) if name in WRONG]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return case_results("tests.distributed.watch_script", tmp_path_factory.mktemp("watch"), SIZE)


@pytest.mark.parametrize("case", HARMLESS_CASES)
def test_gradients_that_ddp_averages_raise_no_alarm(results: Results, case: str) -> None:
    for rank in results[case]:
        assert rank["equal"]
        assert rank["bypassed"] == 0
        assert rank["texts"] == []


@pytest.mark.parametrize("case", WRONG_CASES)
def test_gradients_that_stay_on_their_rank_are_noticed_and_said_once(results: Results, case: str) -> None:
    for number, rank in enumerate(results[case]):
        assert not rank["equal"]
        assert rank["bypassed"] > 0
        (text,) = rank["texts"]
        assert f"rank {number}" in text
        assert "of Model" in text
        assert "call_through_ddp" in text
        assert "sync_gradients" in text


def test_a_backward_without_forward_is_told_from_one_after_the_average(results: Results) -> None:
    assert "without a forward" in results["bypassed, plain model"][0]["texts"][0]
    for name in ("bypassed afterwards", "second backward"):
        assert "had averaged those of its last forward" in results[f"{name}, plain model"][0]["texts"][0]


def test_steps_that_the_user_keeps_local_are_no_fault(results: Results) -> None:
    for name in ("local steps", "step, local steps"):
        assert [rank["bypassed"] for rank in results[name]] == [0, 0]
    assert not results["local steps"][0]["equal"]


@pytest.mark.parametrize(
    ("name", "bypassed"), [("plain", 0), ("head outside", 0), ("bypassed", 1), ("metrics", 1), ("opaque", 1)]
)
def test_a_static_graph_averages_its_first_backward_from_the_outputs_only(
    results: Results, name: str, bypassed: int
) -> None:
    for rank in results[f"static graph, {name} first"]:
        assert (rank["bypassed"], rank["equal"]) == (bypassed, not bypassed)


BYPASSED = ["bypassed", "bypassed in part", "bypassed after accumulation", "twice"]


@pytest.mark.parametrize("name", BYPASSED)
def test_a_watch_of_steps_speaks_once_before_the_step(results: Results, name: str) -> None:
    for number, rank in enumerate(results[f"step, {name}"]):
        assert rank["early"] == 0
        assert rank["bypassed"] == 1
        assert f"only rank {number} has" in rank["texts"][0]


@pytest.mark.parametrize("name", ["accumulated only", "averaged before", "accumulated only, twice"])
def test_a_step_outside_no_sync_on_gradients_from_inside_is_reported_once(results: Results, name: str) -> None:
    for number, rank in enumerate(results[f"step, {name}"]):
        assert rank["bypassed"] == 1
        (text,) = rank["texts"]
        assert f"only rank {number} has: every backward since the last average was under no_sync" in text
        assert "run the last forward and backward before each step outside no_sync" in text


SILENT = ["averaged later", "dropped", "zeroed", "accumulated"]


@pytest.mark.parametrize("name", SILENT)
def test_a_watch_of_steps_is_silent_where_nothing_is_left(results: Results, name: str) -> None:
    for rank in results[f"step, {name}"]:
        assert (rank["bypassed"], rank["texts"]) == (0, [])


def test_in_any_order_of_forwards_and_backwards_the_watch_is_right(results: Results) -> None:
    assert results["random"] == [[], []]


def test_a_step_while_ddp_still_waits_is_reported(results: Results) -> None:
    for rank in results["step, unfinished"]:
        assert rank["bypassed"] == 1
        assert not rank["equal"]
        assert "still waits for those of other parameters" in rank["texts"][0]
        assert "find_unused_parameters=True" in rank["texts"][0]


def test_only_the_parameters_of_the_optimizer_count_and_sparse_ones_too(results: Results) -> None:
    assert results["other parameters"] == [[0, 1, 1]] * SIZE


def test_a_watched_model_can_be_copied_and_saved(results: Results) -> None:
    assert results["copied"] == [True, True]


def test_it_raises_where_asked_to(results: Results) -> None:
    for number in range(SIZE):
        assert f"stay those of rank {number}" in results["raise in the backward"][number]["error"]
        assert "about to step" in results["raise in the step"][number]["error"]
        assert "add their losses" in results["raise after the average"][number]["error"]
        assert results["raise not"][number]["error"] == ""


def test_nothing_is_left_of_a_removed_watch(results: Results) -> None:
    assert results["removed"] == [{"bypassed": 0, "left": 0}] * SIZE


def test_the_optimizer_of_accelerate_is_watched(results: Results) -> None:
    assert results["accelerated"] == [1, 1]


@pytest.mark.parametrize("kind", ["", ", reentrant", ", unused parameters", ", static graph"])
def test_a_method_through_the_wrapper_has_the_gradients_of_its_forward(results: Results, kind: str) -> None:
    for rank in results[f"called through{kind}"]:
        assert rank == {"equal": True, "same": True, "function": True, "keys": True}


@pytest.mark.parametrize("kind", ["", ", reentrant"])
def test_a_loss_from_a_part_names_the_parameters_that_ddp_still_waits_for(results: Results, kind: str) -> None:
    for number, rank in enumerate(results[f"part{kind}"]):
        assert "gave no gradient to head.weight, head.bias of Model" in rank["error"]
        assert f"stay those of rank {number}" in rank["error"]
        assert "find_unused_parameters=True" in rank["error"]
        assert rank["hooks"] == 0
        assert not rank["equal"]


@pytest.mark.parametrize("name", ["unused parameters", "static graph", "no_sync", "head outside"])
def test_a_part_for_which_ddp_does_not_wait_in_vain_is_no_fault(results: Results, name: str) -> None:
    assert results[f"part, {name}"] == [{"error": "", "equal": True, "hooks": 0}] * SIZE


def test_a_rank_waits_for_one_that_raised_until_the_timeout_of_the_group(results: Results) -> None:
    waiting, raised = results["one rank raises"]
    assert (waiting["error"], raised["error"]) == ("RuntimeError", "KeyError")
    assert raised["seconds"] < SECONDS <= waiting["seconds"] + 0.1


def test_a_method_that_raises_leaves_the_wrapper_whole(results: Results) -> None:
    for rank in results["called and raising"]:
        assert rank["whole"]
        assert rank["equal"]
        assert rank["bypassed"] == 0
        assert rank["errors"][0] == "KeyError: 'no such batch'"
        assert "has no method 'not_there'" in rank["errors"][1]
        assert "has no method 'reentrant'" in rank["errors"][2]
        assert "refused before the method" in rank["errors"][3]


def test_a_method_finds_the_wrapper_whole(results: Results) -> None:
    assert results["seen from inside"] == [[True] * 4] * SIZE


def test_bad_input_costs_one_sentence(results: Results) -> None:
    for step, when, action, compiled in results["bad input"]:
        assert step == 'watch_ddp got when="step" and NoneType as optimizer: give the optimizer'
        assert "when='never'" in when
        assert "action='shout'" in action
        assert compiled == "watch_ddp got a OptimizedModule: give what was compiled"


def test_only_a_wrapper_can_be_watched_or_called_through() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(DistributedError, match="watch_ddp got a Linear: give the DistributedDataParallel itself"):
        watch_ddp(model)
    with pytest.raises(DistributedError, match="call_through_ddp got a Linear"):
        call_through_ddp(model, "forward", torch.ones(2))
