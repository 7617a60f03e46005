"""Stacks of small blocks, each call checkpointed with torch's own function inside an offloader's `saving`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ckpt_surgery.runtime.offload.offloader import Offloader

BLOCKS, ROWS, WIDTH = 6, 8, 16
INPUT_BYTES = ROWS * WIDTH * 4


class Block(nn.Module):
    """A block with positional arguments: hidden states, and tensors that it multiplies them by."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor, *others: Tensor) -> Tensor:
        for other in others:
            hidden = hidden * other
        change: Tensor = torch.tanh(self.linear(hidden))
        return hidden + change


class Function(nn.Module):
    """A block that is a function."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.function(*tensors)


def blocks(count: int = BLOCKS) -> list[Block]:
    torch.manual_seed(0)
    return [Block() for _ in range(count)]


def first(seed: int = 1) -> Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def call(block: nn.Module, offloader: Offloader | None, *tensors: Tensor) -> Any:
    given = [tensor for tensor in tensors if tensor.requires_grad]
    with offloader.saving(given) if offloader else nullcontext():
        return checkpoint(block, *tensors, use_reentrant=False)


def forward(
    stack: Sequence[nn.Module],
    hidden: Tensor,
    offloader: Offloader | None = None,
    *,
    others: Sequence[Tensor] = (),
    after: Callable[[int, Tensor], object] = lambda number, given: None,
) -> Tensor:
    """Run the blocks; `after` gets each one's number and its input."""
    hidden = hidden * 1
    for number, block in enumerate(stack):
        given, hidden = hidden, call(block, offloader, hidden, *others)
        after(number, given)
        del given
    loss: Tensor = hidden.square().sum()
    return loss


def backward(loss: Tensor, *, again: bool = False) -> None:
    """Run the backward; `again` if another one will follow."""
    torch.autograd.backward(loss, retain_graph=again)


def gradients(offloader: Offloader | None = None) -> list[Tensor]:
    """Take a step on a new stack; return the gradients of the first hidden states and of all parameters."""
    stack, hidden = blocks(), first()
    backward(forward(stack, hidden, offloader))
    return grads(hidden, *(parameter for block in stack for parameter in block.parameters()))


def trained(offloader: Offloader, steps: int) -> list[list[Tensor]]:
    return [gradients(offloader) for _ in range(steps)]


def grads(*tensors: Tensor) -> list[Tensor]:
    return [tensor.grad for tensor in tensors if tensor.grad is not None]


def same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    assert len(some) == len(others) > 0
    return all(map(torch.equal, some, others))
