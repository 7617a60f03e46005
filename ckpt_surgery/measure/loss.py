"""Choose the scalar that a step trains on: the output's own loss, or a weighted sum of all its tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ckpt_surgery.errors import OptionError, OptionTypeError
from ckpt_surgery.model_patches.vocabulary import PAST_STATE
from ckpt_surgery.runtime.tools.containers import tensors


def loss_of(output: Any) -> Tensor:
    """Return the mean of the output's own `loss`, or else a weighted sum of every float tensor in the output.

    The sum weighs element i of each tensor by cos(i), divided by the square root of their number: a sum of squares
    would hardly change in a model that ends in a normalisation. Past state is left out, since models return none while
    they checkpoint. Raises OptionError if the output holds no float tensor that requires gradient.
    """
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, Tensor) and own.requires_grad:
        return own.mean()
    results = [v for n, v in output.items() if n not in PAST_STATE] if isinstance(output, Mapping) else output
    terms: list[Tensor] = []
    for tensor in tensors(results):
        if tensor.is_floating_point() and tensor.requires_grad:
            flat = tensor.reshape(-1)
            weights = torch.arange(flat.numel(), device=flat.device, dtype=torch.float64).cos()
            terms.append((flat * weights.to(flat.dtype)).sum() / math.sqrt(max(flat.numel(), 1)))
    if not terms:
        raise OptionError("the model's output holds no loss and no float tensor that requires gradient")
    return torch.stack([term.to(terms[0].device, terms[0].dtype) for term in terms]).sum()


def scalar(value: Any) -> Tensor:
    """Return the loss if it can be trained on. Raises OptionError or OptionTypeError."""
    if not isinstance(value, Tensor):
        raise OptionTypeError(f"the loss is of type {type(value).__name__}: it has to be a tensor with one element")
    if value.numel() != 1:
        raise OptionError(f"the loss has the shape {tuple(value.shape)}: it has to be a tensor with one element")
    if not value.requires_grad:
        raise OptionError("the loss needs no gradient: it has to depend on a parameter that requires one")
    return value
