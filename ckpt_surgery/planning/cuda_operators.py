"""Run attention and dropout as CUDA does, on machines without CUDA: a CPU's operators keep more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ckpt_surgery.torch_names import EFFICIENT_ATTENTION, FLASH_ATTENTION, MATH_ATTENTION, FakeTensor

_WIDEST_FLASH_HEAD = 256
_ALIGNED_BYTES = 16
"""The memory-efficient kernel loads rows of this many bytes."""
_BIAS_COLUMNS = 8
"""The same kernel takes masks with a multiple of this many columns; others are padded."""


class CudaOperators(TorchFunctionMode):
    """A mode in which attention and dropout on tensors without data run the operators that CUDA would choose.

    A CPU chooses others: with dropout, or if values are not as wide as keys, its only attention operator keeps the
    whole matrix of weights, and its dropout keeps a mask of floats where CUDA keeps one of bools. CUDA's rules for
    attention (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, from compute capability 8.0) are: flash attention
    in half precision without a mask, where all heads have one width of at most 256; memory-efficient attention where
    rows are aligned and keys have as many heads as queries; otherwise the matrix, as for broadcast samples.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _REPLACED and args and isinstance(args[0], FakeTensor):
            return _REPLACED[func](*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or not 0 < p < 1 or inplace:
        return functional.dropout(input, p, training, inplace)
    result: Tensor = torch.native_dropout(input, p, True)[0]
    return result


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    width = query.shape[-1]
    fused = all(tensor.ndim == 4 for tensor in (query, key, value)) and len(query) == len(key) == len(value)
    half = query.dtype in (torch.bfloat16, torch.float16)
    if fused and half and attn_mask is None and width == value.shape[-1] <= _WIDEST_FLASH_HEAD:
        padded = [functional.pad(tensor, (0, -width % 8)) if width % 8 else tensor for tensor in (query, key, value)]
        result: Tensor = FLASH_ATTENTION(*padded, dropout_p, is_causal, False, scale=scale)[0]
        _add_workspace(result.grad_fn, *padded[:2])
        return result[..., :width] if width % 8 else result
    step = _ALIGNED_BYTES // query.itemsize
    aligned = not width % step and not value.shape[-1] % step
    if fused and aligned and query.shape[1] == key.shape[1] == value.shape[1]:
        bias = attn_mask
        if bias is not None:
            if bias.dtype is torch.bool:
                bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill_(bias.logical_not(), float("-inf"))
            if rest := -bias.shape[-1] % _BIAS_COLUMNS:
                bias = functional.pad(bias, (0, rest))[..., :-rest]
            bias = bias.expand(*query.shape[:2], query.shape[2], key.shape[2])
        result = EFFICIENT_ATTENTION(
            query, key, value, bias, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale
        )[0]
        return result
    result = MATH_ATTENTION(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]
    return result


def _add_workspace(node: Any, query: Tensor, key: Tensor) -> None:
    """Make the backward of flash attention hold the buffers that its kernel allocates.

    These are the gradient of the queries in single precision, sums of rows, and gradients of keys and values for each
    head of the queries where there are fewer (mha_bwd in aten/src/ATen/native/transformers/cuda/flash_attn/
    flash_api.cpp, pytorch 03b7c19).
    """
    if node is None:
        return
    samples, heads, tokens, width = query.shape
    rows, columns = tokens + -tokens % 128, width + -width % (32 if width <= 128 else 64)
    sizes = [((samples, rows, heads, columns), torch.float32), ((samples, heads, rows), torch.float32)]
    if key.shape[1] != heads:
        sizes += [((samples, key.shape[2], heads, width), query.dtype)] * 2
    like = query.new_empty(0)  # the queries themselves may be freed before this
    held: list[Tensor] = []

    def begin(gradients: Any) -> None:
        held.extend(like.new_empty(shape, dtype=dtype) for shape, dtype in sizes)

    node.register_prehook(begin)
    node.register_hook(lambda *_: held.clear())


_REPLACED: dict[Any, Callable[..., Tensor]] = {functional.dropout: _dropout}
if FLASH_ATTENTION and EFFICIENT_ATTENTION and MATH_ATTENTION:
    _REPLACED[functional.scaled_dot_product_attention] = _attention
