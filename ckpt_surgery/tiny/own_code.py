"""What code outside transformers needs to become a tiny model: weights that it leaves to a checkpoint, and a dtype.

Such code may create parameters without values, because a checkpoint fills them; here there is no checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import PretrainedConfig

from ckpt_surgery.tiny.configs import all_configs

_SPREAD = 0.02


def is_own_code(model_class: type) -> bool:
    """Whether a model class is not part of transformers."""
    return not model_class.__module__.startswith("transformers.")


def name_dtype(config: PretrainedConfig, dtype: torch.dtype) -> None:
    """Name the dtype of the model in its configurations, for code that makes tensors of the dtype it reads there."""
    name = "dtype" if hasattr(PretrainedConfig(), "dtype") else "torch_dtype"  # renamed in 4.56
    for part in all_configs(config):
        setattr(part, name, dtype)


class ValuesOfMeta(TorchFunctionMode):
    """A tensor on the meta device reads as zeros, for constructors that read values when only sizes are asked for."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READERS and args[0].is_meta:
            args = (torch.zeros(args[0].shape, dtype=args[0].dtype, device="cpu"), *args[1:])
        return func(*args, **(kwargs or {}))


_READERS = (torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__float__, torch.Tensor.__int__)


@contextmanager
def marked_uninitialized() -> Iterator[None]:
    """Memory that is allocated without a value holds NaN, so that `fill_uninitialized` can tell it."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]


def fill_uninitialized(model: nn.Module) -> None:
    """Give parameters that hold NaN random values; those of one dimension 1, or 0 if they are a bias."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta or not bool(torch.isnan(parameter).any()):
            continue
        with torch.no_grad():
            if parameter.ndim > 1:
                parameter.normal_(0.0, _SPREAD)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
