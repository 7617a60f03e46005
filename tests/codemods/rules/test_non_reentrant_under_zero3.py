"""The claims of CKPT105 about torch, on a block that gathers and frees its weights like ZeRO-3."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError, checkpoint

pytestmark = [pytest.mark.both, pytest.mark.torch]


class Scale(nn.Module):
    """A norm's weight: freed in place after each forward, gathered again before each forward and backward."""

    def __init__(self, *, frozen: bool, sharded: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8), requires_grad=not frozen)
        if sharded:
            self._whole = self.weight.detach().clone()
            self._free()
            self.register_forward_pre_hook(lambda *_: self._gather())
            self.register_forward_hook(lambda *_: self._free())
            self.register_full_backward_pre_hook(lambda *_: self._gather())

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * self.weight

    def _gather(self) -> None:
        self.weight.data = self._whole

    def _free(self) -> None:
        self.weight.data = torch.empty(0)


def gradients(*, frozen: bool, sharded: bool, reentrant: bool) -> list[Any]:
    """Return the gradients of a checkpointed block: of an adapter behind the weight, and of its input."""
    torch.manual_seed(0)
    block = nn.Sequential(Scale(frozen=frozen, sharded=sharded), nn.Linear(8, 8))
    hidden = torch.randn(4, 8, requires_grad=True)
    checkpoint(block, hidden, use_reentrant=reentrant).square().sum().backward()
    return [hidden.grad, block[1].weight.grad]


def test_freeing_a_frozen_weight_stops_non_reentrant_checkpointing() -> None:
    with pytest.raises(CheckpointError, match=r"different metadata(.|\n)*torch\.Size\(\[0\]\)"):
        gradients(frozen=True, sharded=True, reentrant=False)


@pytest.mark.parametrize(("frozen", "reentrant"), [(True, True), (False, True), (False, False)])
def test_the_reentrant_mode_and_trained_weights_are_right(frozen: bool, reentrant: bool) -> None:
    expected = gradients(frozen=frozen, sharded=False, reentrant=reentrant)
    torch.testing.assert_close(gradients(frozen=frozen, sharded=True, reentrant=reentrant), expected)
