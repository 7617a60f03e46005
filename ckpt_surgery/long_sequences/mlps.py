"""Find the MLPs of a model that can run over shards of their sequence, and say why others cannot."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from torch import nn

from ckpt_surgery.torch_names import ConvNd, NormBase


class MlpReason(StrEnum):
    """Why an MLP is not tiled."""

    ARGUMENTS = "its forward takes more than one tensor"
    MIXES = "it mixes tokens, routes them, or holds what is not known"

    @classmethod
    def of(cls, module: nn.Module) -> MlpReason | None:
        """Return the reason for a module; None if there is none."""
        required = [
            parameter
            for parameter in inspect.signature(module.forward).parameters.values()
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        if len(required) != 1:
            return cls.ARGUMENTS
        inside = list(module.modules())
        own = (parameter for part in inside for parameter in part.parameters(recurse=False))
        if any(parameter.dim() > 2 for parameter in own) or any(isinstance(part, _MIXING) for part in inside):
            return cls.MIXES
        if not _width(module) or any(isinstance(part, (nn.ModuleList, nn.ModuleDict)) for part in _parts(module)):
            return cls.MIXES
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Mlp:
    """A module that is an MLP by its name: tiled if `reason` is None.

    `width` is the number of features of a token, 0 if not known. A shard has as many tokens: that is the rule of
    Arctic Long Sequence Training (arXiv 2506.13996), where sequence length over hidden size, rounded up, is the number
    of shards.
    """

    name: str
    module: nn.Module
    width: int
    reason: MlpReason | None


_NAMES = re.compile(r"mlp|ffn|feed_?forward|dense_?(gated_?)?act|sparse_?moe", re.IGNORECASE)
"""The names of MLPs, and of modules in their place, in transformers."""
_MIXING = (NormBase, nn.GroupNorm, nn.RNNBase, nn.MultiheadAttention, nn.Embedding, ConvNd)


def mlps_of(model: nn.Module, blocks: Iterable[nn.Module]) -> list[Mlp]:
    """Find the MLPs inside these blocks, the outermost of each, in the order of the model."""
    inside = {part: block for block in blocks for part in block.modules() if part is not block}
    mlps: list[Mlp] = []
    taken: set[nn.Module] = set()
    for name, module in model.named_modules():
        if module not in inside or module in taken:
            continue
        if not _NAMES.search(f"{name.rpartition('.')[2]} {type(module).__name__}") or not any(module.children()):
            continue
        taken.update(module.modules())
        mlps.append(Mlp(name, module, _width(module), MlpReason.of(module)))
    return mlps


def _width(module: nn.Module) -> int:
    """Return the width of a token if the module is made of products that begin and end with it, otherwise 0."""
    products: list[tuple[Any, Any]] = []
    for part in _parts(module):
        if isinstance(part, nn.Linear):
            products.append((part.in_features, part.out_features))
        elif type(part).__name__ == "Conv1D" and hasattr(part, "nx"):
            products.append((part.nx, part.nf))
    return products[0][0] if len(products) > 1 and products[-1][1] == products[0][0] else 0


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a module and all modules inside it, but of a layer with an adapter only the layer."""
    base = getattr(module, "base_layer", None)
    if isinstance(base, nn.Module):
        yield from _parts(base)
        return
    yield module
    for child in module.children():
        yield from _parts(child)
