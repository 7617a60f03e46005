"""Put low-rank adapters of PEFT's sizes on a model, to count what they keep; they are not for training."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ckpt_surgery.errors import PlanningError

_BLOCK = 64
"""The number of weights that share a scale."""
_SCALES = 256
"""The number of scales that share a scale; also the number of values of 8 bits."""


class Linear4Bit(nn.Module):
    """A frozen linear layer in QLoRA's form: NF4 with double quantization (arXiv:2305.14314, section 3).

    A weight takes 4 bits, the scale of 64 weights 8 bits, and the scale of 256 scales 32 bits. The forward and the
    backward each unpack the weight in the dtype of the input, and keep neither it nor the input.
    """

    def __init__(self, inputs: int, outputs: int, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.shape = (outputs, inputs)
        count = inputs * outputs
        scales = -(-count // _BLOCK)
        self.weight = nn.Parameter(_bytes(-(-count // 2), 1), requires_grad=False)
        self.bias = bias
        self.register_buffer("scales", _bytes(scales))
        self.register_buffer("scales_of_scales", torch.empty(-(-scales // _SCALES), dtype=torch.float32))
        self.register_buffer("offset", torch.empty((), dtype=torch.float32))
        self.register_buffer("values", torch.empty(2**4 + _SCALES, dtype=torch.float32))

    @classmethod
    def of(cls, layer: Any) -> Linear4Bit:
        """Return a layer of the same sizes and bias in 4 bits."""
        return cls(*_sizes(layer), layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return a result of the layer's shape and dtype; its values mean nothing."""
        return _Product.apply(x, self.weight, self.shape, self.bias)  # type: ignore[no-any-return, no-untyped-call]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, shape: tuple[int, int], bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(packed)
        ctx.shape = shape
        return functional.linear(x, packed.new_zeros(shape, dtype=x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None]:
        (gradient,), (packed,) = gradients, ctx.saved_tensors
        return gradient @ packed.new_zeros(ctx.shape, dtype=gradient.dtype), None, None, None


def _bytes(*shape: int) -> Tensor:
    """Make bytes from floats of one byte: on shapes, integers hold values and floats do not."""
    return torch.empty(shape, dtype=torch.float8_e4m3fn).view(torch.uint8)


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

    With `four_bits`, layers that get adapters hold their weights in 4 bits, as for QLoRA; others keep their dtype.

    Every linear layer except the output embeddings gets one, as with PEFT's "all-linear". Experts in one parameter
    get none, as in PEFT without `target_parameters`.

    Adapters are made inside `where`: the `ShapesOnly` of a model that holds no data, or a `torch.device`.

    Raises:
        PlanningError: the model has no linear layer.
    """
    places = linear_layers(model)
    if not places:
        raise PlanningError(f"{type(model).__name__} has no linear layer that an adapter could go to")
    model.requires_grad_(False)

    def adapted(layer: Any) -> nn.Module:
        return LoraLinear(Linear4Bit.of(layer) if four_bits else layer, *_sizes(layer), rank)

    with where:
        return _replace(places, adapted)


def pack_frozen(model: nn.Module, where: AbstractContextManager[Any]) -> int:
    """Hold the weights of frozen linear layers except the output embeddings in 4 bits, and count these layers.

    They are made inside `where`, as in `add_lora`.

    Raises:
        PlanningError: the model has no frozen linear layer.
    """
    frozen = linear_layers(model, frozen=True)
    if not frozen:
        raise PlanningError(f"{type(model).__name__} has no frozen linear layer")
    with where:
        return _replace(frozen, Linear4Bit.of)


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


def linear_layers(model: nn.Module, *, frozen: bool = False) -> list[tuple[nn.Module, str, Any]]:
    """List the linear layers except the output embeddings, each with the module that holds it and its name there.

    With `frozen`, list only those that `pack_frozen` would hold in 4 bits.
    """
    from transformers.pytorch_utils import Conv1D

    head = head_of(model)
    layers = [
        (parent, name, layer)
        for parent in list(model.modules())
        for name, layer in parent.named_children()
        if isinstance(layer, (nn.Linear, Conv1D)) and layer is not head
    ]
    if not frozen:
        return layers
    return [each for each in layers if each[2].weight.is_floating_point() and not each[2].weight.requires_grad]


def _replace(places: list[tuple[nn.Module, str, Any]], make: Callable[[Any], nn.Module]) -> int:
    """Replace each layer by what `make` returns for it, called once for a shared layer, and count the layers."""
    replacements: dict[nn.Module, nn.Module] = {}
    for parent, name, layer in places:
        if layer not in replacements:
            replacements[layer] = make(layer)
        setattr(parent, name, replacements[layer])
    return len(replacements)


def _sizes(layer: Any) -> tuple[int, int]:
    """Return the inputs and outputs of a layer; a Conv1D holds its weight transposed."""
    first, second = layer.weight.shape
    return (second, first) if isinstance(layer, nn.Linear) else (first, second)
