"""A counting selective policy is right if torch asks it in the forward alone (CKPT012)."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.utils import checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts

pytestmark = [pytest.mark.torch, pytest.mark.both]


def every_second(counted: Callable[[Any], object]) -> Callable[..., bool]:
    seen: Counter[object] = Counter()

    def policy(ctx: Any, op: object, *args: object, **kwargs: object) -> bool:
        if op is torch.ops.aten.addmm.default:
            seen[counted(ctx)] += 1
        return op is torch.ops.aten.addmm.default and seen[counted(ctx)] % 2 == 1

    return policy


def gradients(counted: Callable[[Any], object] | None = None) -> list[Tensor]:
    """Train two blocks of three products each, with a policy that counts them or without checkpointing."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(*(part for _ in range(3) for part in (nn.Linear(4, 4), nn.Tanh()))) for _ in range(2)]
    states = torch.randn(3, 4)
    for block in blocks:
        if counted is None:
            states = block(states)
        else:
            contexts = partial(create_selective_checkpoint_contexts, every_second(counted))
            states = checkpoint.checkpoint(block, states, use_reentrant=False, context_fn=contexts)
    states.sum().backward()  # type: ignore[no-untyped-call]
    return [part.grad for block in blocks for part in block.parameters() if part.grad is not None]


@pytest.mark.parametrize(
    ("counted", "tells"), [(lambda ctx: None, False), (lambda ctx: ctx.is_recompute, True)], ids=["one", "two"]
)
def test_a_policy_that_counts_is_right_unless_torch_asks_it_again(
    counted: Callable[[Any], object], tells: bool
) -> None:
    asks_again = "policy_fn(" in inspect.getsource(checkpoint._CachedTorchDispatchMode.__torch_dispatch__)
    expected = gradients()
    try:
        made = gradients(counted)
    except RuntimeError as error:
        made, raised = [], str(error)
    else:
        raised = ""
    right = not raised and all(torch.equal(value, other) for value, other in zip(made, expected, strict=True))
    assert right is (tells or not asks_again), raised
