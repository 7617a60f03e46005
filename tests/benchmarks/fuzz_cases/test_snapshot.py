"""What a snapshot sees, and which differences it forgives."""

from __future__ import annotations

import array
import io
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy
import torch
from torch import nn

from benchmarks.fuzz_cases.snapshot import attribute_names, differences, leaves_of, model_leaves

pytestmark = pytest.mark.torch


def advanced(generator: Any, draw: Callable[[Any], object]) -> Any:
    draw(generator)
    return generator


def counter(start: int) -> Callable[[], int]:
    return lambda: start


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        ([1], [1, 2]),
        ({"a": [{1}]}, {"a": [{2}]}),
        (deque([1]), deque([2])),
        (Counter(a=1), Counter(a=2)),
        (bytearray(1), bytearray(2)),
        (array.array("d", [1.0]), array.array("d", [2.0])),
        (io.StringIO("a"), io.StringIO("b")),
        (partial(float, 1), partial(float, 2)),
        (SimpleNamespace(inner=[1]), SimpleNamespace(inner=[2])),
        (numpy.zeros(1), numpy.ones(1)),
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2), None),
        (itertools.count(1), itertools.count(2)),
        (iter([1, 2]), iter([2])),
        (counter(1), counter(2)),
        (random.Random(1), random.Random(2)),
        (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
        (numpy.random.default_rng(1), advanced(numpy.random.default_rng(1), lambda g: g.random())),
        (numpy.random.RandomState(1), advanced(numpy.random.RandomState(1), lambda g: g.rand())),
    ],
    ids=lambda value: type(value).__name__,
)
def test_differences_are_seen(one: Any, other: Any) -> None:
    assert differences(leaves_of(one), leaves_of(other))


def test_a_gradient_of_a_leaf_is_seen() -> None:
    leaf = torch.ones(1, requires_grad=True)
    before = leaves_of([leaf])
    leaf.sum().backward()  # type: ignore[no-untyped-call]
    (difference,) = differences(leaves_of([leaf]), before)
    assert difference.startswith(".0.grad: ")


def test_attributes_of_parts_are_seen_and_those_of_a_treatment_left_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    before, names = model_leaves(model), attribute_names(model)
    vars(model[0])["calls"] = {"count": 1}
    assert [d.partition(": ")[0] for d in differences(model_leaves(model), before)] == [
        "0.calls.keys",
        "0.calls.count",
    ]
    assert differences(model_leaves(model, attribute_names(model) - names), before) == []


def test_close_is_relative_to_the_largest_element() -> None:
    one, other = leaves_of(torch.tensor([100.0, 1.0])), leaves_of(torch.tensor([100.0, 1.01]))
    assert differences(one, other)
    assert differences(one, other, 1e-5)
    assert not differences(one, other, 1e-3)


def test_nothing_is_zero_only_where_that_is_said() -> None:
    one, other = leaves_of(torch.zeros(2)), leaves_of(None)
    assert differences(one, other)
    assert not differences(one, other, zero_is_none=True)
    assert not differences(other, other, zero_is_none=True)
    assert differences(leaves_of(torch.ones(2)), other, zero_is_none=True)


def test_what_is_not_a_number_is_equal_to_itself() -> None:
    nothing = leaves_of([float("nan"), torch.tensor([float("nan"), 1.0])])
    assert not differences(nothing, nothing)


def test_elements_with_strange_strides_and_sparse_tensors_can_be_compared() -> None:
    values = [torch.ones(9).as_strided((1, 1), (5, 3)), torch.eye(2).to_sparse()]
    assert not differences(leaves_of(values), leaves_of(values))


def test_objects_that_hold_themselves_end() -> None:
    value: list[Any] = []
    value.append(value)
    assert leaves_of(value)
