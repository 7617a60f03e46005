"""Gradients averaged and compared by hand, with the cases of `gradients_script`.

The loop that people write runs beside it and goes wrong where expected.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn

from ckpt_surgery.distributed.gradients import Ranks, _facts, _fault, gradients_in_sync, sync_gradients
from ckpt_surgery.errors import DistributedError
from tests.distributed.gradients_script import LOOKS, SIZE, WRONG
from tests.rank_cases import Results, case_results

pytestmark = [pytest.mark.torch, pytest.mark.slow]
ROUNDING = 1e-6
LAYERS = ["0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return case_results("tests.distributed.gradients_script", tmp_path_factory.mktemp("gradients"), SIZE)


def near(pairs: list[list[float] | None], expected: list[float | None]) -> bool:
    """Compare each gradient with the one value wanted in all its elements, or with None."""
    return [pair is None for pair in pairs] == [mean is None for mean in expected] and all(
        math.isclose(each, mean, rel_tol=ROUNDING)
        for pair, mean in zip(pairs, expected, strict=True)
        if pair is not None and mean is not None
        for each in pair
    )


def test_a_loop_of_all_reduce_waits_for_a_gradient_that_others_lack(results: Results) -> None:
    first, *others = results["naive, fewer"]
    assert "Timed out waiting 5000ms" in first["error"]
    assert [other["error"] for other in others] == ["", ""]


def test_a_loop_of_all_reduce_adds_up_gradients_of_different_parameters(results: Results) -> None:
    # Rank 0 has gradients of parameters 0 and 1, the others of 1 and 2: the first of each meet, then the second.
    first, second = (1 + 12 + 13) / 3, (11 + 22 + 23) / 3
    for rank, expected in enumerate([[first, second, None], [None, first, second], [None, first, second]]):
        assert results["naive, others"][rank]["error"] == ""
        assert near(results["naive, others"][rank]["values"], expected)


def test_each_gradient_becomes_the_mean_with_zeros_where_a_rank_has_none(results: Results) -> None:
    for rank in range(SIZE):
        assert near(results["ours, fewer"][rank], [2, 12, 21 / 3])
        assert near(results["ours, others"][rank], [1 / 3, 12, (22 + 23) / 3])


def test_where_no_rank_has_a_gradient_it_stays_none(results: Results) -> None:
    for rank in results["ours, nowhere"]:
        assert near(rank, [(1 + 2) / 3, None, None])


@pytest.mark.parametrize(("dtype", "every"), [("float16", 60000.0), ("bfloat16", 3e38)])
def test_in_half_precision_a_mean_is_finite_where_the_sum_is_not(results: Results, dtype: str, every: float) -> None:
    assert results[f"{dtype}, naive"] == [math.inf] * SIZE
    for mean in results[dtype]:
        assert math.isclose(mean, every, rel_tol=2.0**-7)


def test_float64_is_added_up_in_float64(results: Results) -> None:
    assert results["float64"] == [[[2 + 2.0**-45] * 2]] * SIZE


def test_each_dtype_has_its_own_bucket(results: Results) -> None:
    for rank in results["mixed"]:
        assert all(math.isclose(pair[0], 10 * i + 2, rel_tol=2.0**-7) for i, pair in enumerate(rank["values"]))
        assert all(rank["dtypes"])
        assert rank["stats"] == [2 + 5, 5, 10, 0, 2 * 2 * (4 + 2 + 8 + 2 + 8)]


def test_a_tied_parameter_counts_once(results: Results) -> None:
    assert results["tied"] == [{"values": [[[2.0, 2.0]] * 2], "parameters": 1, "bytes": 16}] * SIZE


def test_a_frozen_parameter_is_averaged_as_long_as_it_has_a_gradient(results: Results) -> None:
    for rank in results["frozen"]:
        assert rank["before"] == ["0", "1"]
        assert near(rank["values"], [2, 12, None])
        assert rank["weights"] == results["frozen"][0]["weights"] == [-1, -11, 1]


def test_ranks_with_other_strides_meet_by_place_and_keep_their_own(results: Results) -> None:
    plain, last = [12, 4, 2, 1], [12, 1, 6, 3]
    assert [rank["held"] for rank in results["strides"]] == [[True, plain], [True, last], [True, last]]


def test_a_created_gradient_has_the_strides_and_the_dtype_of_its_parameter(results: Results) -> None:
    assert results["strides"][2]["created"] == [True, [12, 1, 6, 3]]
    assert results["wide gradient"] == ["torch.float32"] * SIZE


def test_a_compiled_wrapper_is_averaged_in_its_own_group(results: Results) -> None:
    inside, outside, other = results["compiled"]
    assert outside["values"] is None
    for rank in (inside, other):
        assert rank["before"] == ["0"]
        assert near(rank["values"], [2])  # of 1 and 3; over all ranks there would be a fault or a wait


def test_gradients_are_written_in_place(results: Results) -> None:
    assert results["identity"] == [{"same": True, "right": True, "buckets": 4}] * SIZE


def test_no_bucket_is_larger_than_allowed(results: Results) -> None:
    assert results["bounded"] == [{"largest": 8000, "buckets": 50}] * SIZE


def test_all_ranks_end_with_the_same_bits(results: Results) -> None:
    # Thirty gradients, of which five are empty and therefore equal before.
    assert results["random"] == [{"before": 25, "after": [], "finite": True}] * SIZE


def test_a_subgroup_is_averaged_on_its_own_and_refuses_other_ranks(results: Results) -> None:
    inside, outside, other = results["subgroup"]
    for rank in (inside, other):
        assert (rank["sync"], rank["look"]) == ("", "")
        assert near(rank["values"], [2, 11 / 2])
    assert near(outside["values"], [2, None])
    assert outside["sync"].startswith("sync_gradients: rank 1 is not in the group")
    assert outside["look"].startswith("gradients_in_sync: rank 1 is not in the group")


def test_a_group_of_one_rank_has_nothing_to_do(results: Results) -> None:
    assert results["alone"] == [{"collectives": 0, "names": []}] * SIZE


def test_a_loss_that_bypassed_ddp_gets_the_gradients_of_ddp(results: Results) -> None:
    for rank in results["DDP"]:
        assert rank["before"] == LAYERS
        assert rank["after"] == rank["ddp in sync"] == []
        assert rank["single"] < ROUNDING
        assert rank["ddp"] < ROUNDING
        assert rank["twice"] < ROUNDING, "averaging what DDP has averaged changes nothing but rounding"


def test_500_small_parameters_take_three_collectives(results: Results) -> None:
    for rank in results["how many"]:
        assert rank["ours"] == ["all_reduce"] * 3
        assert rank["stats"] == 3
        assert rank["look"] == ["all_gather_object"]
        assert rank["naive"] == ["all_reduce"] * 500


THREE, FOUR = (f"(shape ({size},), torch.float32, cpu)" for size in (3, 4))
SAID = {
    "sparse": "on rank 1, the gradient of 'words.weight' is sparse (torch.sparse_coo)",
    "fully_shard": "on every rank, '0.weight' is a DTensor",
    "FSDP1": "on every rank, the model is sharded by FullyShardedDataParallel",
    "other shape": f"'1' is {THREE} on ranks 0 and 2, {FOUR} on rank 1",
    "fewer parameters": f"'1' is {THREE} on ranks 0 and 2, missing on rank 1",
    "other order": "parameter number 1 is 'a' on ranks 0 and 1, 'b' on rank 2",
    "frozen on one": f"'1' is {THREE[:-1]}, frozen with a gradient) on rank 0, {THREE} on ranks 1 and 2",
    "meta": "on rank 1, '0' is on the meta device",
    "expanded": "on rank 1, elements of the gradient of '1' share memory",
    "converted": "on rank 1, the gradient of '1' has shape (3,), torch.float32, on cpu, and should have shape (3,), "
    "torch.float64, on cpu",
    "float8": "on every rank, the gradient of '0' is torch.float8_e4m3fn, which cannot be summed",
}
LOOKED_AT = ("fully_shard", "FSDP1", "meta")
"""Models that cannot be compared either."""


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_averaged_is_named_on_every_rank_and_left_as_it_was(results: Results, case: str) -> None:
    ranks = results[f"refused: {case}"]
    assert SAID[case] in ranks[0]["sync"]
    assert ranks[0]["sync"].startswith("sync_gradients: ")
    for rank in ranks:
        assert rank["sync"] == ranks[0]["sync"]
        assert (SAID[case] in rank["look"]) == (case in LOOKED_AT)
        assert rank["intact"]
        assert near(rank["works after"], [2, 12, 22])


def test_other_bucket_sizes_are_refused_on_every_rank(results: Results) -> None:
    for text in results["other buckets"]:
        assert "'bucket_bytes' is 100 on ranks 0 and 1, 200 on rank 2" in text


def test_bucket_sizes_that_are_none_are_refused_on_every_rank(results: Results) -> None:
    for rank in results["bad buckets"]:
        *everywhere, on_one = rank
        for text, size in zip(everywhere, ("0", "'a'"), strict=True):
            assert text.startswith(f"sync_gradients: on every rank, bucket_bytes is {size}. Give a whole number")
        assert on_one.startswith("sync_gradients: on rank 0, bucket_bytes is 0.")


def test_a_gradient_that_one_rank_cannot_read_is_reported_on_every_rank(results: Results) -> None:
    for rank in results["unreadable"]:
        assert rank["look"] == (
            "gradients_in_sync: on rank 1, a gradient cannot be read: RuntimeError: not to be read"
        )
        assert near(rank["works after"], [2, 12, 22])


@pytest.mark.parametrize("call", [sync_gradients, gradients_in_sync])
def test_what_is_no_module_is_refused(call: Callable[..., object]) -> None:
    with pytest.raises(DistributedError, match=f"{call.__name__}: the model is of type list: give a torch.nn.Module"):
        call([nn.Parameter(torch.ones(1))])


DIFFERENT = {
    "flipped",
    "one has none",
    "other NaN",
    "signed zero",
    "permuted",
    "other shape",
    "other dtype, same bytes",
    "only some have",
}


@pytest.mark.parametrize("case", LOOKS)
def test_gradients_are_in_sync_where_every_bit_is_the_same(results: Results, case: str) -> None:
    assert results[f"look: {case}"] == [["1"] if case in DIFFERENT else []] * SIZE


@pytest.mark.parametrize("call", [sync_gradients, gradients_in_sync])
@pytest.mark.parametrize("available", [True, False])
def test_without_a_process_group_an_error_says_how_to_get_one(
    call: object, available: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "is_available", lambda: available)
    assert callable(call)
    with pytest.raises(DistributedError, match=r"no process group.*torchrun.*init_process_group"):
        call(nn.Linear(1, 1))


def test_a_device_that_the_backend_does_not_take_is_named() -> None:
    model = nn.Linear(1, 1)
    text = _fault(model, list(model.named_parameters()), ("cuda",))
    assert text is not None
    assert text.startswith("'weight' is on cpu, and the group's backend takes only tensors on cuda.")
    assert _fault(model, list(model.named_parameters()), ("cpu", "cuda")) is None


def test_ranks_agree_on_which_parameters_share_a_device() -> None:
    model = nn.ParameterList(torch.empty(2, device=device) for device in ("cpu", "meta", "cpu"))
    facts = [fact for _, fact in _facts(list(model.named_parameters()))]
    alike, other = "(shape (2,), torch.float32, cpu)", "(shape (2,), torch.float32, meta, device 2 of the model)"
    assert facts == [alike, other, alike]


def test_ranks_agree_on_the_cpu_unless_the_backend_takes_none() -> None:
    second = torch.device("cuda", 1)
    assert Ranks(None, (0, 1), ("cpu", "cuda")).device(second) == torch.device("cpu")
    assert Ranks(None, (0, 1), ("cuda",)).device(second) == second
    assert Ranks(None, (0, 1), ("cuda",)).device(torch.device("cpu")) == torch.device("cuda")
