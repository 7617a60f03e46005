"""On shapes nothing that depends on weights has data, code reads what it needs, and the model is only read."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from ckpt_surgery import PlanningError, explain
from ckpt_surgery.measure.loss import loss_of
from ckpt_surgery.planning.figures import Peak
from ckpt_surgery.planning.shapes import ShapesOnly, ValuesForNumpy, shapes_of
from ckpt_surgery.planning.step_meter import run_metered

pytestmark = [pytest.mark.both, pytest.mark.torch]


def without_data(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return ShapesOnly().without_data(torch.empty(*shape, dtype=dtype))


def test_floats_of_parameters_hold_no_data_and_integers_do() -> None:
    with ShapesOnly():
        hidden = nn.Linear(64, 64)(torch.ones(2, 64))
        positions = torch.arange(7) * 2
        mask = torch.tril(torch.ones(3, 3, dtype=torch.bool))
        frequencies = 1.0 / torch.arange(1, 5)
    assert isinstance(hidden, FakeTensor)
    assert hidden.shape == (2, 64)
    assert positions.tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert mask.sum() == 6
    assert frequencies.tolist() == [1.0, 0.5, pytest.approx(1 / 3), 0.25]


def test_a_large_model_needs_no_memory() -> None:
    with ShapesOnly():
        layer = nn.Linear(10**6, 10**6)  # 4 TB
        result = layer(torch.zeros(3, 10**6))
    assert result.shape == (3, 10**6)


def test_code_that_reads_what_weights_decide_is_given_the_same_values() -> None:
    with ShapesOnly() as mode:
        scores = nn.Linear(64, 8)(torch.zeros(16, 64))
        first, again = (torch.topk(scores, 2).indices for _ in range(2))
        rows = torch.nonzero(first == 3)
    assert first.tolist() == again.tolist()
    assert rows.shape[0] == int((first == 3).sum())
    assert mode.drawn > 0


def test_nothing_is_drawn_where_no_value_is_needed() -> None:
    with ShapesOnly() as mode:
        nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))(torch.zeros(2, 64)).sum().backward()
        pooled = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.AdaptiveMaxPool2d(1))(torch.zeros(1, 1, 9, 9))
        pooled.sum().backward()
        nn.LSTM(4, 4)(torch.zeros(2, 1, 4))[0].sum().backward()
    assert mode.drawn == 0


def test_a_number_that_decides_whether_a_layer_is_dropped_keeps_it() -> None:
    with ShapesOnly():
        assert torch.rand([]) > 0.99


class ConvertsInForward(nn.Module):
    """A layer whose forward converts its router to float32, as released models do."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.router = nn.Linear(8, 8, dtype=torch.bfloat16), nn.Linear(8, 4, dtype=torch.bfloat16)

    def forward(self, values: Tensor) -> Tensor:
        values = self.body(values)
        self.router = self.router.to(torch.float32)
        chosen: Tensor = self.router(values.float()).softmax(-1) @ torch.ones(4)
        return chosen


def test_a_layer_that_a_forward_converts_is_converted_as_with_data() -> None:
    swap = torch.utils.swap_tensors
    model = ConvertsInForward()
    inputs = {"values": torch.ones(2, 8, dtype=torch.bfloat16)}
    once, twice = (explain(model, inputs) for _ in range(2))
    assert once.kept_bytes == twice.kept_bytes > 0
    assert model.router.weight.dtype is torch.bfloat16, "the model is only read"
    with ShapesOnly():
        shapes = shapes_of(model, ShapesOnly())
        for _ in range(2):
            shapes(torch.ones(2, 8, dtype=torch.bfloat16)).sum().backward()
        assert shapes.get_parameter("router.weight").dtype is torch.float32
        assert shapes.get_parameter("body.weight").dtype is torch.bfloat16
    assert torch.utils.swap_tensors is swap


def test_products_of_groups_take_every_dtype() -> None:
    rows, weights = torch.randn(16, 32), torch.randn(4, 32, 64)
    ends = torch.tensor([4, 8, 12, 16], dtype=torch.int32)
    real = torch.nn.functional.grouped_mm(rows, weights, offs=ends)
    with ShapesOnly() as mode:
        told = torch.nn.functional.grouped_mm(rows, mode.without_data(weights), offs=ends)
    assert (told.shape, told.dtype) == (real.shape, real.dtype)


Strides = tuple[tuple[int, ...], ...]


def on_shapes_and_with_data(shape: tuple[int, ...], strides: Callable[[Tensor], Strides]) -> tuple[Strides, Strides]:
    """Return the strides of results of a tensor of this shape without data, and of one with it."""
    shapes = ShapesOnly()
    values = shapes.without_data(torch.ones(shape))
    with shapes:
        told = strides(values)
    return told, strides(torch.randn(shape))


def strides_of(function: Callable[[Tensor], Tensor], given: Tensor) -> Strides:
    """Return the strides of a result and of the gradient of what it was made of."""
    result = function(given)
    (gradient,) = torch.autograd.grad(result, given, result.detach())
    return result.stride(), gradient.stride()


LAYOUTS = [
    pytest.param((2, 4, 5, 5), (0, 1, 2, 3), id="channels first"),
    pytest.param((2, 5, 5, 4), (0, 3, 1, 2), id="channels last"),
    pytest.param((2, 5, 5, 4), (0, 3, 2, 1), id="turned"),
    pytest.param((2, 1, 1, 4), (0, 3, 1, 2), id="of one pixel"),
]


@pytest.mark.parametrize(("shape", "order"), LAYOUTS)
def test_batch_norms_lay_out_their_results_as_with_data(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    def strides(values: Tensor) -> Strides:
        norm = nn.BatchNorm2d(shape[order[1]])
        return strides_of(norm, values.requires_grad_().permute(order))

    told, real = on_shapes_and_with_data(shape, strides)
    assert told == real


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize(("shape", "order"), LAYOUTS)
def test_resizing_lays_out_its_result_as_with_data(shape: tuple[int, ...], order: tuple[int, ...], mode: str) -> None:
    def resized(images: Tensor) -> Tensor:
        return nn.functional.interpolate(images, scale_factor=2, mode=mode)

    told, real = on_shapes_and_with_data(
        shape, lambda values: strides_of(resized, values.requires_grad_().permute(order))
    )
    assert told == real


@pytest.mark.parametrize(
    ("held", "new"), [((16, 64), (1, 16, 64)), ((1, 16, 64), (16, 1, 64)), ((4, 1, 6), (4, 6, 1)), ((1, 1), (1,))]
)
def test_views_have_the_strides_that_they_have_with_data(held: tuple[int, ...], new: tuple[int, ...]) -> None:
    told, real = on_shapes_and_with_data(
        held, lambda values: (values.transpose(0, 1).contiguous().view(new).stride(),)
    )
    assert told == real


class Recurrent(nn.Module):
    """An LSTM, whose workspace only oneDNN knows the size of."""

    def __init__(self, layers: int, both: bool) -> None:
        super().__init__()
        self.layers = nn.LSTM(8, 16, layers, batch_first=True, bidirectional=both)

    def forward(self, rows: Tensor) -> Tensor:
        result: Tensor = self.layers(rows)[0].square().mean()
        return result


@pytest.mark.parametrize(("layers", "both"), [(1, False), (2, True)])
def test_recurrent_layers_keep_and_need_what_they_do_with_data(layers: int, both: bool) -> None:
    model, rows = Recurrent(layers, both), torch.randn(3, 5, 8)
    real = run_metered(copy.deepcopy(model), ((rows,), {}), loss_of)
    told = explain(model, {"rows": rows})
    assert told.kept_bytes == real.kept_bytes > 0
    assert told.peak_bytes == Peak.of(real, told.parameter_bytes).bytes


def test_arrays_are_made_of_drawn_values() -> None:
    costs = without_data(3, 4)
    with pytest.raises(RuntimeError, match="numpy"):
        costs.numpy()
    with ShapesOnly(), ValuesForNumpy():
        assert np.array_equal(costs.numpy(), np.asarray(costs))
        assert costs.numpy().shape == (3, 4)


class Tied(nn.Module):
    """Two layers with one weight, a buffer of floats, one of integers, and a plain tensor."""

    mean: Tensor
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("steps", torch.tensor(5))
        self.table = torch.zeros(4)


def test_a_copy_on_shapes_keeps_ties_and_integers_and_spares_the_model() -> None:
    model = Tied()
    before = copy.deepcopy(model.state_dict())
    copied = shapes_of(model, ShapesOnly())
    assert isinstance(copied, Tied)
    assert copied.second.weight is copied.first.weight
    assert isinstance(copied.first.weight, nn.Parameter)
    assert all(isinstance(tensor, FakeTensor) for tensor in (copied.first.weight, copied.mean, copied.table))
    assert int(copied.steps) == 5
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(isinstance(parameter, FakeTensor) for parameter in model.parameters())


def test_what_cannot_be_copied_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    values = torch.rand(1, 4)
    vars(model[0])["lock"] = threading.Lock()
    with pytest.raises(PlanningError, match=r"Sequential cannot be copied, because of its attribute 0\.lock: TypeErr"):
        explain(model, values)
    with pytest.raises(PlanningError, match=r"the argument rows cannot be copied: TypeError"):
        explain(nn.Linear(4, 4), {"rows": (row for row in values)})


def test_a_model_without_shapes_or_without_a_backward_is_refused() -> None:
    with pytest.raises(PlanningError, match="LazyLinear has parameters without a shape: run one forward first"):
        explain(nn.LazyLinear(4), torch.rand(1, 4))
    with torch.inference_mode(), pytest.raises(PlanningError, match="inference_mode: call this outside of it"):
        explain(nn.Linear(4, 4), torch.rand(1, 4))


@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_that_takes_no_inputs_of_this_dtype_takes_none_on_shapes(bias: bool) -> None:
    layer, inputs = nn.Linear(4, 4, bias=bias).double(), torch.rand(2, 4)
    with pytest.raises(RuntimeError, match="dtype"):
        layer(inputs)
    with pytest.raises(PlanningError, match="takes tensors of one dtype, and not of"):
        explain(layer, inputs)
    assert explain(layer, inputs.double()).parameter_bytes == 8 * (16 + 4 * bias)
