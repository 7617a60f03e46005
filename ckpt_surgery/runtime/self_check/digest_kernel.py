"""The Triton kernel that sums over the bits of many tensors in one launch.

Each word of 32 bits is multiplied by an odd number below 2**33 that no other word of its tensor has, and all are added
up modulo 2**64. So a change of one word, or of the places of two, always changes the sum: the difference of two words
is below 2**32, and times an odd number it is no multiple of 2**64; nor is it times the difference of two of the
numbers. The order in which programs add does not matter, for they are integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

_CHUNK, _STEP = 8192, 1024
"""The words that one program adds up, and how many at a time."""


@triton.jit  # type: ignore[untyped-decorator]
def _add_words(pointers, owners, starts, sizes, sums, chunk: tl.constexpr, step: tl.constexpr):  # type: ignore[no-untyped-def]
    program = tl.program_id(0)
    owner = tl.load(owners + program)
    first = tl.load(starts + program)
    size = tl.load(sizes + owner)
    memory = tl.load(pointers + owner)
    words = memory.to(tl.pointer_type(tl.int32))
    bytes_ = memory.to(tl.pointer_type(tl.uint8))
    whole = size // 4
    total = tl.zeros((step,), tl.int64)
    for offset in range(0, chunk, step):
        at = first + offset + tl.arange(0, step).to(tl.int64)
        word = tl.load(words + at, mask=at < whole, other=0).to(tl.int64)
        for byte in tl.static_range(3):  # those behind the last whole word
            left = tl.where(at == whole, size % 4, 0)
            word += tl.load(bytes_ + at * 4 + byte, mask=left > byte, other=0).to(tl.int64) << (8 * byte)
        mixed = at.to(tl.uint32) * 0x9E3779B1
        mixed = (mixed ^ (mixed >> 15)) * 0x85EBCA77
        total += word * (2 * mixed.to(tl.int64) + 1)
    tl.atomic_add(sums + owner, tl.sum(total, 0))


def sums_in_one_launch(tensors: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Return a sum for each of these tensors, as int64: over so many bytes from its first on. All are on one GPU."""
    device = tensors[0].device
    aligned = [tensor if tensor.data_ptr() % 4 == 0 else tensor.contiguous().clone() for tensor in tensors]
    owners, starts, lengths = _programs(tuple(sizes), device)
    pointers = torch.tensor([tensor.data_ptr() for tensor in aligned], dtype=torch.int64)
    if device.type != "cpu":
        pointers = pointers.pin_memory().to(device, non_blocking=True)
    sums = torch.zeros(len(tensors), dtype=torch.int64, device=device)
    _add_words[(len(owners),)](pointers, owners, starts, lengths, sums, _CHUNK, _STEP)
    return sums


@lru_cache(256)
def _programs(sizes: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tensor of each program and its first word there, and the bytes of each tensor."""
    chunks = [(owner, first) for owner, size in enumerate(sizes) for first in range(0, -(-size // 4), _CHUNK)]
    owners, starts = (torch.tensor(each, device=device) for each in zip(*chunks, strict=True))
    return owners, starts, torch.tensor(sizes, device=device)
