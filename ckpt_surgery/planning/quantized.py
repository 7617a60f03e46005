"""Linear layers with 4-bit weights, of the sizes that bitsandbytes gives them: to count what they keep."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_BLOCK = 64
"""Weights that share a scale."""
_SCALES = 256
"""The number of scales that share a scale; also the number of values in 8 bits."""


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

    def forward(self, x: Tensor) -> Tensor:
        """Return a result of the layer's shape and dtype; its values mean nothing."""
        return _Product.apply(x, self.weight, self.shape, self.bias)  # type: ignore[no-any-return, no-untyped-call]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, shape: tuple[int, int], bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(packed)
        ctx.shape = shape
        return functional.linear(x, _unpacked(packed, shape, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None]:
        (gradient,), (packed,) = gradients, ctx.saved_tensors
        return gradient @ _unpacked(packed, ctx.shape, gradient.dtype), None, None, None


def _bytes(*shape: int) -> Tensor:
    """Make bytes from floats of one byte: on shapes, integers hold values and floats do not."""
    return torch.empty(shape, dtype=torch.float8_e4m3fn).view(torch.uint8)


def _unpacked(packed: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    return packed.new_zeros(shape, dtype=dtype)
