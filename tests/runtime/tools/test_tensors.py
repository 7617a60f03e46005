"""How often tensors were written, read for many at once."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from ckpt_surgery.runtime.tools.tensors import versions

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
