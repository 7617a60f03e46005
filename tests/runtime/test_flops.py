"""The operations of single calls; sums over a step are tested with the meter."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from ckpt_surgery.runtime.flops import flops_of

pytestmark = [pytest.mark.both, pytest.mark.torch]

aten = torch.ops.aten


def test_a_term_of_a_product_is_two() -> None:
    left, right = torch.ones(2, 3), torch.ones(3, 5)
    assert flops_of(aten.mm.default, (left, right), {}, left @ right) == 2 * 2 * 3 * 5
    assert flops_of(aten.addmm.default, (torch.ones(5), left, right), {}, left @ right) == 2 * 2 * 3 * 5


def test_attention_on_a_cpu_is_two_products() -> None:
    query = torch.ones(2, 4, 6, 8)
    kernel = aten._scaled_dot_product_flash_attention_for_cpu.default
    assert flops_of(kernel, (query, query, query), {"is_causal": True}, query) == 2 * 2 * 2 * 4 * 6 * 6 * 8


def test_anything_else_is_nothing() -> None:
    assert flops_of(aten.add.Tensor, (torch.ones(2), 1), {}, torch.ones(2)) == 0
