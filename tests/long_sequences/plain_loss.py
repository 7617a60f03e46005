"""The reference of a fused loss: a small head with inputs, the loss with all logits, a count of products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

TOKENS, WIDTH, VOCABULARY = 12, 6, 17


def case(dtype: torch.dtype = torch.float64, *, bias: bool = True) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Draw hidden states, head, labels of which every third is ignored, and a bias; all need gradient."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(3, TOKENS // 3, WIDTH), torch.randn(VOCABULARY, WIDTH)
    labels = torch.randint(0, VOCABULARY, (3, TOKENS // 3))
    labels.view(-1)[::3] = -100
    shift = torch.randn(VOCABULARY) if bias else None
    return ready(hidden, dtype), ready(weight, dtype), labels, None if shift is None else ready(shift, dtype)


def ready(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(dtype).requires_grad_()


def plain(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None = None,
    *,
    reduction: str = "mean",
    softcap: float | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    logits = F.linear(hidden, weight, bias).flatten(0, -2)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    options: dict[str, Any] = {
        "reduction": reduction,
        "ignore_index": ignore_index,
        "label_smoothing": label_smoothing,
    }
    losses = F.cross_entropy(logits, labels.flatten(), **options)
    return losses.reshape(labels.shape) if reduction == "none" else losses


def gradients(loss: Tensor, *inputs: Tensor | None) -> list[Tensor]:
    """Run the backward; a loss per token gets a different upstream gradient for each."""
    upstream = torch.linspace(-1, 2, loss.numel(), dtype=loss.dtype).reshape(loss.shape) if loss.ndim else None
    return list(torch.autograd.grad(loss, [tensor for tensor in inputs if tensor is not None], upstream))


def apart(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Return the largest difference, as a share of the largest value of each."""
    assert [gradient.dtype for gradient in ours] == [gradient.dtype for gradient in theirs]
    pairs = [(one.double(), other.double()) for one, other in zip(ours, theirs, strict=True)]
    return max(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)


class Products(TorchDispatchMode):
    """A counter of matrix products, their dtypes and the largest tensor that an operator makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        self.largest = 0
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_):
            self.count += 1
            self.dtypes.add(result.dtype)
        if isinstance(result, Tensor):
            self.largest = max(self.largest, result.numel())
        return result
