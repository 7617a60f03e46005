"""The operations of single calls; sums over a step are tested with the meter."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward
from torch.utils.flop_counter import flop_registry

from ckpt_surgery import flops
from ckpt_surgery.flops import flops_of

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


@pytest.mark.parametrize(
    "kernel",
    [
        aten._scaled_dot_product_flash_attention,
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_efficient_attention,
        aten._scaled_dot_product_cudnn_attention,
        aten._scaled_dot_product_fused_attention_overrideable,
        flex_attention,
    ],
    ids=str,
)
def test_queries_that_share_keys_cost_what_they_cost_with_their_own(kernel: Any) -> None:
    query, key, value = torch.ones(2, 4, 6, 8), torch.ones(2, 2, 5, 8), torch.ones(2, 2, 5, 3)
    repeated = [each.repeat_interleave(2, 1) for each in (key, value)]
    weights = 2 * 4 * 6 * 5
    assert flops_of(kernel, (query, key, value), {}, query) == 2 * weights * (8 + 3)
    assert flops_of(kernel, (query, *repeated), {}, query) == 2 * weights * (8 + 3)
    backward: Any = (
        flex_attention_backward if kernel is flex_attention else getattr(aten, f"{kernel.__name__}_backward")
    )
    leading = () if kernel is flex_attention else (torch.ones(2, 4, 6, 3),)
    of_backward = 2 * weights * (8 + 3 + 3 + 8 + 8)  # weights, their gradients, and those of values, queries, keys
    assert flops_of(backward, (*leading, query, key, value), {}, query) == of_backward
    assert flops_of(backward, (*leading, query, *repeated), {}, query) == of_backward


@pytest.mark.parametrize("kernel", ["flash", "efficient"])
def test_attention_costs_what_torch_counts(kernel: str) -> None:
    query, key, value = torch.ones(2, 4, 6, 8), torch.ones(2, 4, 5, 8), torch.ones(2, 4, 5, 8)
    forward = getattr(aten, f"_scaled_dot_product_{kernel}_attention")
    backward = getattr(aten, f"_scaled_dot_product_{kernel}_attention_backward")
    for each, args in ((forward, (query, key, value)), (backward, (query, query, key, value))):
        assert flops_of(each, args, {}, query) == flop_registry[each](*args, out_val=query)


def test_anything_else_is_nothing() -> None:
    assert flops_of(aten.add.Tensor, (torch.ones(2), 1), {}, torch.ones(2)) == 0


def test_what_is_remembered_is_that_of_the_same_shapes_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: dict[tuple[Any, ...], int] = {}
    monkeypatch.setattr(flops, "_counts", counts)
    wide, narrow = torch.ones(3, 5), torch.ones(3, 4)
    for right in (wide, narrow, wide):
        assert flops_of(aten.mm.default, (left := torch.ones(2, 3), right), {}, left @ right) == 12 * right.shape[1]
    assert len(counts) == 2
    image, kernel = torch.ones(1, 4, 6, 6), torch.ones(4, 2, 3, 3)
    both = [
        flops_of(
            aten.convolution.default, (image, kernel, None, [1, 1], [1, 1], [1, 1], transposed, [0, 0], 2), {}, image
        )
        for transposed in (False, True, False)
    ]
    assert both[0] == both[2]
    assert len(counts) == 4
    counts.update(dict.fromkeys(counts, 1))
    assert flops_of(aten.mm.default, (torch.ones(2, 3), wide), {}, torch.ones(2, 5)) == 1, "not counted again"


def test_lengths_in_a_tensor_are_never_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: dict[tuple[Any, ...], int] = {}
    monkeypatch.setattr(flops, "_counts", counts)
    packed = torch.ones(8, 2, 4)
    kernel = aten._flash_attention_forward.default

    def of(*ends: int) -> int:
        lengths = torch.tensor(ends)
        return flops_of(kernel, (packed, packed, packed, lengths, lengths, 6, 6, 0.0, True, False), {}, (packed,))

    assert of(0, 4, 8) == 2 * of(0, 2, 4, 6, 8)
    assert not counts
