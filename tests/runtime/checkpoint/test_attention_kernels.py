"""A recompute may use its forward's attention kernels, and the process's choice is then restored."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ckpt_surgery import SurgeryError, wrap_blocks
from ckpt_surgery.runtime.checkpoint.state import attention_kernels
from tests.zoo.state_toys import WIDTH, Stack

pytestmark = [pytest.mark.torch]


class Attending(nn.Module):
    """Attention to its own rows."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        heads = self.project(hidden).view(1, 1, *hidden.shape)
        return hidden + scaled_dot_product_attention(heads, heads, heads).view_as(hidden)


def test_a_recompute_has_the_kernels_of_its_forward() -> None:
    torch.manual_seed(0)
    model = Stack([Attending(), Attending()])
    wrap_blocks(model)
    seen: list[tuple[bool, ...]] = []
    for layer in model.layers:
        layer.get_submodule("project").register_forward_hook(lambda *_: seen.append(attention_kernels()))
    outside = attention_kernels()
    with sdpa_kernel(SDPBackend.MATH):
        loss = model(torch.ones(4, WIDTH))
        inside = attention_kernels()
    assert inside != outside
    loss.backward()
    assert [inside] * 4 == seen
    assert attention_kernels() == outside


def test_an_error_in_a_recompute_leaves_the_kernels_as_they_were() -> None:
    model = Stack([Attending(), Attending()])
    wrap_blocks(model)
    outside = attention_kernels()
    with sdpa_kernel(SDPBackend.MATH):
        loss = model(torch.ones(4, WIDTH))
    model.layers[0].get_submodule("project").register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(SurgeryError, match="ZeroDivisionError"):
        loss.backward()
    assert attention_kernels() == outside
