"""Bytes and FLOPs are exact on modules small enough to count by hand."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor

from ckpt_surgery.measure.meter import Meter, PerturbedRounding
from ckpt_surgery.measure.record import RunRecord
from ckpt_surgery.measure.results import MODES, Mode
from ckpt_surgery.measure.step import run_step
from tests.measure.toys import (
    BATCH,
    WIDTH,
    Model,
    PairLayer,
    PairsInTurn,
    ResidualByKeyword,
    RouterLoss,
    RoutingLayer,
    SureLayer,
    TwoStreamLayer,
    model_of,
    run,
    values,
)

pytestmark = [pytest.mark.both, pytest.mark.torch]

both_modes = pytest.mark.parametrize("mode", MODES)

HIDDEN = BATCH * WIDTH * 8
"""Bytes of a tensor of hidden states in float64."""


def leaf(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


def backward_of(meter: Meter, loss: Tensor) -> None:
    meter.start_backward(loss)
    loss.backward()  # type: ignore[no-untyped-call]


# FLOPs


def test_a_matrix_product_is_two_flops_for_each_of_its_terms() -> None:
    rows, columns, inner = 2, 3, 5
    left, right = leaf(rows, inner), leaf(inner, columns)
    with Meter() as meter:
        backward_of(meter, (left @ right).sum())
    assert meter.flops.forward == 2 * rows * columns * inner
    assert meter.flops.backward == 2 * meter.flops.forward  # one product for each operand
    assert meter.flops.blocks == 0


def test_what_runs_in_blocks_is_counted_apart() -> None:
    square = leaf(4, 4)
    with Meter() as meter:
        for name, times in (("0", 1), ("1", 2)):
            meter.enter_block(name, iter([square]))
            for _ in range(times):
                square = square @ square
            meter.leave_block(iter([square]))
        backward_of(meter, (square @ square).sum())
    assert meter.flops.blocks == 3 * 2 * 4**3
    assert meter.flops.forward == 4 * 2 * 4**3


@both_modes
def test_a_healthy_stack_costs_one_more_forward_of_its_blocks(mode: Mode) -> None:
    model = model_of(SureLayer, SureLayer, SureLayer)
    reference, checkpointed = run(model), run(model, mode)
    product = 2 * BATCH * WIDTH * WIDTH
    assert reference.flops.forward == 5 * product
    assert reference.flops.blocks == 3 * product
    assert reference.flops.backward == (5 + 4) * product  # the model's input wants no gradient
    assert checkpointed.flops.forward == reference.flops.forward
    assert checkpointed.flops.backward == reference.flops.backward + reference.flops.blocks


# Bytes


def kept(values: Tensor, loss: Any) -> int:
    meter = Meter()
    with meter:
        meter.start_backward(loss(values))
    return meter.kept_bytes


def test_what_operators_save_is_kept_to_the_byte() -> None:
    given = leaf(5, 5)
    size = 5 * 5 * 4
    assert kept(given, lambda x: x.exp().sum()) == size
    assert kept(given, lambda x: x.exp().exp().sum()) == 2 * size
    assert kept(given, lambda x: (x + 1).sum()) == 0  # an addition saves nothing
    assert kept(given, lambda x: x.square().sum()) == 0  # this one saves its input, which nobody here made
    assert kept(given, lambda x: (x * torch.tensor([2.0] * 5)).sum()) == 5 * 4  # the numbers were made a tensor here


def test_a_storage_counts_once_however_many_views_it_has() -> None:
    def views(given: Tensor) -> Tensor:
        result = given.exp()
        return result.view(-1).exp().sum() + result.T.cos().sum() + result.detach().sum()

    assert kept(leaf(5, 5), views) == 2 * 5 * 5 * 4


def test_live_bytes_fall_when_the_last_reference_is_gone() -> None:
    given = torch.zeros(5, 5)
    with Meter() as meter:
        first = given + 1
        second = first + 1
        del first
        third = second + 1
        del second, third
        given.add_(1)
    size = 5 * 5 * 4
    assert meter.timeline().points == ((1, size), (2, 2 * size), (3, 2 * size), (4, 0))


def test_a_long_timeline_has_at_most_200_points_and_keeps_the_peak() -> None:
    with Meter() as meter:
        given = torch.zeros(5)
        for step in range(1000):
            given = given.repeat(3)[:5].clone() if step == 501 else given + 1
    line = meter.timeline()
    assert 150 < len(line.points) <= 200
    assert max(bytes_ for _, bytes_ in line.points) >= 3 * 5 * 4 + 5 * 4
    operators = [at for at, _ in line.points]
    assert operators == sorted(set(operators))


@both_modes
@pytest.mark.parametrize("count", [1, 3])
def test_a_healthy_stack_saves_only_the_inputs_and_outputs_of_its_blocks(mode: Mode, count: int) -> None:
    model = model_of(*[SureLayer] * count)
    reference, checkpointed = run(model), run(model, mode)
    assert reference.memory.best == (count + 2) * HIDDEN
    assert checkpointed.memory.kept == reference.memory.best


# Blocks that leak tensors


def leaking(model: Model) -> frozenset[str]:
    record: RunRecord = run_step(model, values(), blocks=dict(model.layers.named_children()))
    assert record.error is None
    return frozenset(name for name, facts in record.calls.items() if facts.leaks)


def test_blocks_are_named_whose_unreturned_tensors_are_used_outside() -> None:
    assert leaking(model_of(RoutingLayer, RoutingLayer, whole=RouterLoss)) == {"0", "1"}


class DetachedScores(Model):
    def forward(self, values: Tensor) -> Any:
        return super().forward(values) + vars(self.layers[0]).pop("scores").detach()


def test_results_arguments_and_tensors_without_gradient_are_no_leaks() -> None:
    assert leaking(model_of(SureLayer, SureLayer)) == frozenset()
    assert leaking(model_of(PairLayer, PairLayer, whole=PairsInTurn)) == frozenset()
    assert leaking(model_of(TwoStreamLayer, TwoStreamLayer, whole=ResidualByKeyword)) == frozenset()
    assert leaking(model_of(RoutingLayer, whole=DetachedScores)) == frozenset()


# Perturbed rounding


def gradient_of_convolution(left: Tensor, right: Tensor) -> Tensor:
    weight = right[0].reshape(-1, 301, 7)[:9].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(torch.conv1d(left, weight).sum(), weight)
    return gradient


@pytest.mark.parametrize(
    "operator",
    [
        pytest.param(lambda a, b: torch.mm(a[0], b[0]), id="mm"),
        pytest.param(torch.bmm, id="bmm"),
        pytest.param(lambda a, b: torch.addmm(b[0, 0], a[0], b[0]), id="addmm"),
        pytest.param(lambda a, b: torch.baddbmm(b[:, :1], a, b), id="baddbmm"),
        pytest.param(lambda a, b: a.sum(1), id="sum"),
        pytest.param(lambda a, b: a.sum((0, 2)), id="sum over two dimensions"),
        pytest.param(lambda a, b: torch.conv1d(a, b[0, :, :].reshape(-1, 301, 7)[:9]), id="convolution"),
        pytest.param(lambda a, b: gradient_of_convolution(a, b), id="gradient of a convolution"),
    ],
)
def test_perturbed_results_are_equal_up_to_rounding(operator: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    left, right = (torch.randn(2, 301, 301, generator=generator) for _ in range(2))
    plain = operator(left, right)
    with PerturbedRounding():
        turned, unsummed = operator(left, right), left.exp()
    assert not torch.equal(plain, turned)
    assert torch.allclose(plain, turned, rtol=1e-4, atol=1e-4)
    assert torch.equal(unsummed, left.exp())


def test_infinite_entries_stay_infinite() -> None:
    left = torch.tensor([[float("inf"), 1.0], [2.0, 3.0]])
    with PerturbedRounding():
        turned = left.mm(torch.eye(2).add(1))
    assert turned[0].isinf().all()
    assert turned[1].isfinite().all()
