"""Tensors' write counts, read for many at once; their bits, and the tensors inside them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

from ckpt_surgery.runtime.tools.tensors import inner_tensors, same_bits, versions

pytestmark = pytest.mark.both


def test_the_versions_of_tensors_count_their_writes() -> None:
    left, right = torch.zeros(2), torch.zeros(2)
    right.add_(1)
    assert versions([left, right]) == [0, 1]


def test_the_version_of_an_inference_tensor_is_0_beside_others() -> None:
    with torch.inference_mode():
        uncounted = torch.zeros(2)
    counted = torch.zeros(2).add_(1)
    assert versions([uncounted, counted]) == [0, 1]


def test_quantized_tensors_are_compared_by_what_they_store() -> None:
    ours, theirs = (torch.quantize_per_tensor(torch.tensor([1.0, x]), 0.1, 0, torch.qint8) for x in (2.0, 3.0))
    assert same_bits(ours, ours.clone())
    assert not same_bits(ours, theirs)


def test_a_sharded_tensor_holds_its_part_alone(one_rank: None) -> None:
    sharded = distribute_tensor(torch.ones(3), init_device_mesh("cpu", (1,)))
    (inside,) = inner_tensors(sharded)
    assert torch.equal(inside, torch.ones(3))
