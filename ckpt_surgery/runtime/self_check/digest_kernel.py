"""Sum over the bits of many tensors in one launch, by a Triton kernel.

Each word of 32 bits is multiplied by an odd number below 2**33 that no other word of its tensor has, and all are added
up modulo 2**64. So a change of one word, or a swap of two, always changes the sum: the difference of two words
is below 2**32, and times an odd number it is not a multiple of 2**64; nor is it times the difference of two of the
numbers. The order in which programs add does not matter, for they are integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

_CHUNK, _STEP = 8192, 1024
"""The words that one program adds up, and how many at a time."""


@triton.jit  # type: ignore[untyped-decorator]
def _add_words(memories, sums, chunk: tl.constexpr, step: tl.constexpr):  # type: ignore[no-untyped-def]
    first = tl.program_id(0).to(tl.int64) * chunk
    owner = tl.program_id(1)
    address = tl.load(memories + 2 * owner)
    size = tl.load(memories + 2 * owner + 1)
    if first * 4 < size:
        words = address.to(tl.pointer_type(tl.int32))
        single = address.to(tl.pointer_type(tl.uint8))
        whole = size // 4
        total = tl.zeros((step,), tl.int64)
        for offset in range(0, chunk, step):
            index = first + offset + tl.arange(0, step)
            word = tl.load(words + index, mask=index < whole, other=0).to(tl.int64)
            left = tl.where(index == whole, size % 4, 0)  # bytes after the last whole word
            for byte in tl.static_range(3):
                word += tl.load(single + index * 4 + byte, mask=left > byte, other=0).to(tl.int64) << (8 * byte)
            mixed = index.to(tl.uint32) * 0x9E3779B1
            mixed = (mixed ^ (mixed >> 15)) * 0x85EBCA77
            total += word * (2 * mixed.to(tl.int64) + 1)
        tl.atomic_add(sums + owner, tl.sum(total, 0))


def sums_in_one_launch(tensors: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Return one int64 sum for each of these tensors on one GPU, over the given number of bytes from its start."""
    device = tensors[0].device
    aligned = [
        tensor if tensor.data_ptr() % 4 == 0 else tensor.as_strided((size // tensor.element_size(),), (1,)).clone()
        for tensor, size in zip(tensors, sizes, strict=True)
    ]
    memories = torch.tensor([(tensor.data_ptr(), size) for tensor, size in zip(aligned, sizes, strict=True)])
    if device.type != "cpu":
        memories = memories.pin_memory().to(device, non_blocking=True)
    sums = torch.zeros(len(tensors), dtype=torch.int64, device=device)
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        _add_words[(-(-max(sizes) // (4 * _CHUNK)), len(sizes))](memories, sums, _CHUNK, _STEP)
    return sums
