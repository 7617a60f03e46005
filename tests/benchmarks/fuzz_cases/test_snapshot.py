"""The differences that a snapshot sees, and those that it forgives."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from benchmarks.fuzz_cases.snapshot import attribute_names, differences, leaves_of, model_leaves

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        ([1], [1, 2]),
        ({"a": [{1}]}, {"a": [{2}]}),
        (Counter(a=1), Counter(a=2)),
        (SimpleNamespace(inner=[1]), SimpleNamespace(inner=[2])),
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2), None),
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


def test_what_a_recompute_may_write_twice_is_told_from_what_it_may_not() -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.BatchNorm1d(2)]), "head": nn.Linear(2, 2)})
    block: Any = model["layers"][0]  # type: ignore[index]
    head: Any = model["head"]
    block.calls, block.log, head.calls = 0, [], 0
    (own, held), names = model_leaves(model), attribute_names(model)
    block.calls, block.running_mean[0], block.training = 1, 3.0, False
    block.log.append(1)
    head.calls, block.added = 1, 5
    later = model_leaves(model, attribute_names(model) - names)
    assert {d.partition(": ")[0] for d in differences(later[0], own)} == {
        "layers.0.calls",
        "layers.0.running_mean",
        "layers.0.training",
    }
    assert {d.partition(": ")[0] for d in differences(later[1], held)} == {
        "layers.0.log.length",
        "layers.0.log.0",
        "head.calls",
    }


def test_close_is_relative_to_the_largest_element() -> None:
    one, other = leaves_of(torch.tensor([100.0, 1.0])), leaves_of(torch.tensor([100.0, 1.01]))
    assert differences(one, other)
    assert differences(one, other, 1e-5)
    assert not differences(one, other, 1e-3)


def test_nothing_is_not_zero() -> None:
    assert differences(leaves_of(torch.zeros(2)), leaves_of(None))
