"""Record the experts that a block chose for its tokens, and report a recompute with other choices as such."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ckpt_surgery.runtime.tools.tensors import unseen

_CHOICES = ("topk", "argmax", "multinomial", "sort", "argsort")
_ROUTERS = ("router", "experts")


def has_router(block: nn.Module, *, surely: bool = False) -> bool:
    """Tell by the names of its modules whether a block may route its tokens to experts.

    With `surely`, only a router or experts count; a `gate` alone may belong to an MLP.
    """
    names = _ROUTERS if surely else (*_ROUTERS, "gate")
    return any(name.rpartition(".")[2] in names for name, _ in block.named_modules())


class RoutingRecord(TorchFunctionMode):
    """A context that adds the indices which functions choose to `choices`; only their own memory is held."""

    def __init__(self, choices: list[Tensor]) -> None:
        super().__init__()
        self._choices = choices

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _CHOICES:
            indices = result if isinstance(result, Tensor) else result[1]
            if indices.dtype == torch.int64 and indices.dim() > 0:
                self._choices.append(indices.detach().to(torch.uint8))  # modulo 256: experts are few
        return result


def rerouted(first: list[Tensor], again: list[Tensor]) -> tuple[int, int] | None:
    """Count the tokens that went to other experts the second time, and all tokens; None if no choice differs.

    A choice has the shape (..., tokens, experts chosen), or (tokens,) for one expert each.
    """
    for ours, theirs in zip(first, again, strict=False):
        if ours.shape != theirs.shape:
            return None
        with unseen():
            differs = (ours != theirs).reshape(-1, ours.shape[-1] if ours.dim() > 1 else 1).any(1)
            if bool(differs.any()):
                return int(differs.sum()), differs.numel()
    return None
