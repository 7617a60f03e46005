"""`tile_mlp`: gradients of tiled MLPs in every kind of training, and refusals. `tiled_script` has the ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ckpt_surgery import SurgeryError
from ckpt_surgery.long_sequences import tiled_call as shards
from ckpt_surgery.long_sequences.tiled import tile_mlp
from ckpt_surgery.measure.meter import Meter
from tests.long_sequences.tiled_script import CASES, CUT_CASES
from tests.rank_cases import Results, case_results
from tests.zoo.ddp_models import CLOSE, SIZE, STEPS
from tests.zoo.tiled_toys import MIDDLE, WIDTH, Gated, farthest, gated, given, gradients_of

pytestmark = pytest.mark.torch
ROUNDING = 1e-12
READY = "Expected to mark a variable ready only once"
OURS = [name for name in CASES if not name.startswith("naive") and name != "fsdp inside mlps"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return case_results("tests.long_sequences.tiled_script", tmp_path_factory.mktemp("tiled"), SIZE)


def test_a_backward_in_the_backward_marks_parameters_ready_twice(results: Results) -> None:
    for rank in results["naive"]:
        assert READY in rank["error"]


@pytest.mark.parametrize("case", OURS)
def test_ranks_train_as_one_process_without_tiles(results: Results, case: str) -> None:
    for rank in results[case]:
        assert rank["error"] == ""
        assert rank["difference"] < ROUNDING


@pytest.mark.parametrize("case", CUT_CASES)
def test_ranks_train_as_one_process_with_blocks_cut_at_their_attention(results: Results, case: str) -> None:
    # The model casts to float32, and so differs by its rounding.
    for rank in results[case]:
        assert (rank["error"], rank["uncut"]) == ("", [])
        assert rank["difference"] < CLOSE
        assert rank.get("heard", [STEPS, True]) == [STEPS, True], "each parameter hears of one gradient a step"


def test_modules_sharded_inside_an_mlp_are_refused(results: Results) -> None:
    for rank in results["fsdp inside mlps"]:
        assert "FSDP2 shards a module inside it" in rank["error"]


@pytest.mark.parametrize("shape", [(2, 7, WIDTH), (7, WIDTH), (2, 3, 7, WIDTH), (2, 1, WIDTH), (1, 0, WIDTH)])
@pytest.mark.parametrize("options", [{"num_shards": 3}, {"num_shards": 50}, {"shard_size": 2}, {"shard_size": 100}])
def test_gradients_are_those_of_the_module_as_it_was(shape: tuple[int, ...], options: dict[str, int]) -> None:
    module, values = gated(), given(*shape)
    expected = gradients_of(module, values)
    with tile_mlp(module, **options):  # type: ignore[arg-type]
        assert farthest(expected, gradients_of(module, values)) < ROUNDING
        with torch.no_grad():
            assert torch.allclose(module(values), expected["result"], rtol=0, atol=ROUNDING)
        assert farthest(expected, gradients_of(module.eval(), values)) < ROUNDING


def test_a_wrong_sum_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    module, values = gated(), given()
    expected = gradients_of(module, values)
    monkeypatch.setattr(shards, "checkpoint", lambda run, *rest, use_reentrant: run(*rest).detach().requires_grad_())
    with tile_mlp(module, num_shards=3):
        assert farthest(expected, gradients_of(module, values)) == float("inf")


@pytest.mark.parametrize(
    ("options", "sizes"),
    [({"num_shards": 3}, [3, 2, 2]), ({"num_shards": 9}, [1] * 7), ({"shard_size": 3}, [3, 2, 2])],
)
def test_shards_are_as_even_as_can_be(options: dict[str, int], sizes: list[int]) -> None:
    module, seen = gated(), []
    module.up.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[-2]))
    with tile_mlp(module, **options):  # type: ignore[arg-type]
        module(given())
    assert seen == sizes


def test_each_shard_runs_again_in_the_backward_and_module_hooks_do_not() -> None:
    module, seen = gated(), []
    module.up.register_forward_pre_hook(lambda *_: seen.append("up"))
    module.register_forward_hook(lambda *_: seen.append("module"))
    with tile_mlp(module, num_shards=3):
        result = module(given())
        assert sorted(seen) == ["module", "up", "up", "up"]
        result.sum().backward()
        assert seen.count("up") == 6
        assert seen.count("module") == 1
        with torch.no_grad():
            module(given())
        assert seen.count("up") == 9


def test_the_middle_is_never_there_whole() -> None:
    module, values = gated(), given(1, 512, WIDTH)
    middle = 512 * MIDDLE * 8
    assert peak(module, values) > 4 * middle
    with tile_mlp(module, num_shards=16):
        assert peak(module, values) < 2 * middle
    free = peak(module, values, gradients=False)
    with tile_mlp(module, num_shards=16):
        assert peak(module, values, gradients=False) < free / 4


def peak(module: nn.Module, values: Tensor, *, gradients: bool = True) -> int:
    with Meter() as meter, torch.set_grad_enabled(gradients):
        result = module(values)
        meter.start_backward(result)
        if gradients:
            result.sum().backward()
    highest: int = max(held for _, held in meter.timeline().points)
    return highest


def test_hooks_on_parameters_fire_once() -> None:
    module, seen = gated(), []

    def double(gradient: Tensor) -> Tensor:
        seen.append("before")
        return gradient * 2

    module.up.weight.register_hook(double)  # type: ignore[no-untyped-call]
    module.up.weight.register_post_accumulate_grad_hook(lambda _: seen.append("after"))  # type: ignore[no-untyped-call]
    expected = gradients_of(module, given())
    with tile_mlp(module, num_shards=3):
        assert farthest(expected, gradients_of(module, given())) < ROUNDING
    assert seen == ["before", "after"] * 2


def without_parameters(module: Gated, values: Tensor) -> Tensor:
    module.requires_grad_(False)
    return values


def partly_frozen(module: Gated, values: Tensor) -> Tensor:
    module.gate.requires_grad_(False)
    return values


def tied(module: Gated, values: Tensor) -> Tensor:
    module.gate.weight = module.up.weight
    return values


@pytest.mark.parametrize(
    "prepare",
    [
        lambda module, values: values.detach(),
        without_parameters,
        lambda module, values: without_parameters(module, values).detach(),
        partly_frozen,
        lambda module, values: given(7, WIDTH, 2).permute(2, 0, 1).detach().requires_grad_(),
        tied,
    ],
    ids=["no input", "no parameters", "neither", "partly", "not contiguous", "tied"],
)
def test_gradients_go_where_they_went(prepare: Callable[[Gated, Tensor], Tensor]) -> None:
    module = gated()
    values = prepare(module, given())
    expected = gradients_of(module, values)
    with tile_mlp(module, num_shards=3):
        assert farthest(expected, gradients_of(module, values)) < ROUNDING


def test_gradients_of_gradients() -> None:
    module = gated()
    with tile_mlp(module, num_shards=3):
        assert torch.autograd.gradgradcheck(module, given(2, 3, WIDTH))


def test_dropout_draws_the_same_in_the_recompute() -> None:
    module, values = gated(dropout=0.5), given()

    def by_hand(values: Tensor) -> Tensor:
        return torch.cat([Gated.forward(module, shard) for shard in values.tensor_split(3, dim=-2)], -2)

    expected = gradients_of(module, values, by_hand)
    with tile_mlp(module, num_shards=3):
        assert farthest(expected, gradients_of(module, values)) < ROUNDING


def test_other_random_numbers_in_the_recompute_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    module, values = gated(dropout=0.5), given()
    with tile_mlp(module, num_shards=3):
        expected = gradients_of(module, values)
        monkeypatch.setattr(shards, "checkpoint", partial(checkpoint, preserve_rng_state=False))
        assert farthest(expected, gradients_of(module, values)) > 1e-3


def test_float32_sums_are_nearer_to_the_truth() -> None:
    narrow = gated().bfloat16()
    exact = copy.deepcopy(narrow).double()
    values = given(1, 1024, WIDTH).detach().bfloat16()
    truth = gradients_of(exact, values.double())
    errors = {}
    for wide in (False, True):
        with tile_mlp(narrow, num_shards=256, fp32_accumulate=wide):
            actual = gradients_of(narrow, values)
        assert {gradient.dtype for gradient in actual.values()} == {torch.bfloat16}
        errors[wide] = {name: error(actual[name], truth[name]) for name in truth if name != "result"}
    assert all(errors[True][name] < errors[False][name] / 2 for name in errors[True])


def error(actual: Tensor, truth: Tensor) -> float:
    return float((actual.double() - truth).norm() / truth.norm())


def test_float32_sums_leave_other_dtypes_and_start_anew_each_backward() -> None:
    module, values = gated(), given()
    expected = gradients_of(module, values)
    with tile_mlp(module, num_shards=3, fp32_accumulate=True):
        assert farthest(expected, gradients_of(module, values)) < ROUNDING
    module.bfloat16()
    with tile_mlp(module, num_shards=3, fp32_accumulate=True):
        loss = module(values.bfloat16()).square().sum()
        first, second = (torch.autograd.grad(loss, [*module.parameters()], retain_graph=True) for _ in range(2))
        assert all(map(torch.equal, first, second))


def test_float32_sums_refuse_gradients_of_gradients_of_parameters() -> None:
    module = gated().bfloat16()
    with tile_mlp(module, num_shards=3, fp32_accumulate=True):
        loss = module(given().bfloat16()).square().sum()
        with pytest.raises(SurgeryError, match="create_graph=True"):
            torch.autograd.grad(loss, module.up.weight, create_graph=True)
        assert module.up.weight.requires_grad
