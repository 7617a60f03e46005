"""What code outside transformers needs to become a tiny model: a dtype that it reads, values while it is counted."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import PretrainedConfig

from ckpt_surgery.tiny.configs import all_configs


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
