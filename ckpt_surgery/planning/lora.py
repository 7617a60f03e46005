"""Put low-rank adapters of PEFT's sizes on a model, to count what they keep and not to train them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from ckpt_surgery.errors import PlanningError
from ckpt_surgery.planning.quantized import Linear4Bit


class LoraLinear(nn.Module):
    """A frozen linear layer and the two matrices beside it, as PEFT runs them with its defaults.

    The matrices are in single precision, whatever the layer's dtype (PEFT's `autocast_adapter_dtype`), without bias
    and without dropout; the input is cast to their dtype, and the sum of both results back. Beside a layer of 4 bits,
    their result is cast back before the sum.
    """

    def __init__(self, base: nn.Module, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Linear(inputs, rank, bias=False, dtype=torch.float32)
        self.lora_B = nn.Linear(rank, outputs, bias=False, dtype=torch.float32)

    @property
    def weight(self) -> Any:
        """The weight of the layer, for models that look at it."""
        return self.base_layer.weight

    @property
    def bias(self) -> Any:
        """The bias of the layer."""
        return self.base_layer.bias

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Add the matrices' result to the layer's; the scale affects no size."""
        result = self.base_layer(x, *args, **kwargs)
        if isinstance(self.base_layer, Linear4Bit):
            result = result.clone()
            return result + self._by_matrices(x).to(result.dtype)  # type: ignore[no-any-return]
        return (result + self._by_matrices(x)).to(result.dtype)  # type: ignore[no-any-return]

    def _by_matrices(self, x: Tensor) -> Tensor:
        result: Tensor = self.lora_B(self.lora_A(x.to(self.lora_A.weight.dtype))) * 2.0
        return result


def add_lora(model: nn.Module, rank: int, where: AbstractContextManager[Any], *, four_bits: bool = False) -> int:
    """Freeze a model, give its linear layers adapters of this rank, and count them.

    With `four_bits`, the layers that get adapters hold their weights in 4 bits, as for QLoRA; others keep their dtype.

    Adapters are made inside `where`: the `ShapesOnly` of a model that holds no data, or a `torch.device`.

    They are those of PEFT's "all-linear": every linear layer except the output embeddings. Experts in a single
    parameter get none, as in PEFT without `target_parameters`.

    Raises:
        PlanningError: the model has no linear layer.
    """
    places = _linear_layers(model)
    if not places:
        raise PlanningError(f"{type(model).__name__} has no linear layer that an adapter could go to")
    model.requires_grad_(False)

    def adapted(layer: Any) -> nn.Module:
        return LoraLinear(_in_4_bits(layer) if four_bits else layer, *_sizes(layer), rank)

    with where:
        return _replaced(places, adapted)


def pack_frozen(model: nn.Module, where: AbstractContextManager[Any]) -> int:
    """Hold the weights of frozen linear layers except the output embeddings in 4 bits, and count these layers.

    They are made inside `where`, as in `add_lora`.

    Raises:
        PlanningError: the model has no frozen linear layer.
    """
    frozen = _frozen_layers(model)
    if not frozen:
        raise PlanningError(f"{type(model).__name__} has no frozen linear layer")
    with where:
        return _replaced(frozen, _in_4_bits)


def frozen_weights(model: nn.Module) -> list[Tensor]:
    """Return the weights that `pack_frozen` would hold in 4 bits."""
    return [layer.weight for _, _, layer in _frozen_layers(model)]


def is_mostly_frozen(model: nn.Module) -> bool:
    """Tell whether at most half of a model's parameters are trained, as with adapters."""
    parameters = list(model.parameters())
    trained = sum(each.numel() for each in parameters if each.requires_grad)
    return 2 * trained <= sum(each.numel() for each in parameters)


def head_of(model: nn.Module) -> nn.Module | None:
    """Return the output embeddings of a transformers model, or None."""
    find: Any = getattr(model, "get_output_embeddings", None)
    with suppress(Exception):  # some models have none, and say so in their own way
        return None if find is None else find()
    return None


def _frozen_layers(model: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    return [place for place in _linear_layers(model) if _is_frozen(place[2])]


def _linear_layers(model: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    """List the linear layers except the output embeddings, each with the module that holds it and its name there."""
    from transformers.pytorch_utils import Conv1D

    head = head_of(model)
    return [
        (parent, name, layer)
        for parent in list(model.modules())
        for name, layer in parent.named_children()
        if isinstance(layer, (nn.Linear, Conv1D)) and layer is not head
    ]


def _replaced(places: list[tuple[nn.Module, str, Any]], made: Callable[[Any], nn.Module]) -> int:
    """Replace each layer by what `made` returns, once if several modules share it, and count the layers."""
    others: dict[nn.Module, nn.Module] = {}
    for parent, name, layer in places:
        if layer not in others:
            others[layer] = made(layer)
        setattr(parent, name, others[layer])
    return len(others)


def _sizes(layer: Any) -> tuple[int, int]:
    """Return the inputs and outputs of a layer; a Conv1D holds its weight transposed."""
    first, second = layer.weight.shape
    return (second, first) if isinstance(layer, nn.Linear) else (first, second)


def _in_4_bits(layer: Any) -> nn.Module:
    return Linear4Bit(*_sizes(layer), layer.bias)


def _is_frozen(layer: Any) -> bool:
    return layer.weight.is_floating_point() and not layer.weight.requires_grad
