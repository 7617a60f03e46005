"""Exact sums over the bits of all that a run of a block saves, made at its end in as few launches as can be.

They tell whether two runs saved the same, and not how far they are apart: see `fingerprints` for that. A sum is

1. on a CPU the CRC-32 of the memory. Its polynomial is primitive: no change within 32 bits goes unseen, and no two
   words of 32 bits that have changed places within 512 MB;
2. on a GPU with Triton a weighted sum, all of them in one launch: see `digest_kernel`;
3. on other devices a weighted sum, by two operators a tensor.

Nothing waits for a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import c_char
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from itertools import accumulate
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from ckpt_surgery.runtime.self_check.fingerprints import INTEGERS, has_values, sum_of_bits, weights, without_autocast
from ckpt_surgery.runtime.tools.tensors import inner_tensors, is_parameter, unseen

Sum = int | Tensor
"""A number, or a tensor of int64 and shape () on a device that has perhaps not made it yet."""

_NOT_COMPARED = -1
_MAYBE_UNSET = {torch.uint8, torch.int64, torch.uint64}
_LONGEST_ROW, _MOST_ROWS = 65_536, 1024
"""What a tensor is cut into: rows of words, which are weighted alike."""


@dataclass(frozen=True, slots=True)
class Digest:
    """What one run saved: by tensor its form, and which of the `sums` is its own. Those of the same memory share one.

    The form of a parameter is its id, that of another tensor its shape and dtype. It `is_ready` where all sums are
    numbers.
    """

    forms: Sequence[Any]
    places: Sequence[int]
    sums: Sequence[Sum]
    is_ready: bool

    def __len__(self) -> int:
        return len(self.forms)

    @property
    def sums_on_devices(self) -> Sequence[Tensor]:
        """The sums that are no numbers."""
        return () if self.is_ready else [each for each in self.sums if isinstance(each, Tensor)]

    def compare(
        self, again: Digest, parameters: Callable[[], Iterable[nn.Parameter]]
    ) -> tuple[int | None, Sequence[tuple[Tensor, Tensor]]]:
        """Hold another run against this, as far as both came.

        Returns the number of the first tensor that is known to differ, if any, and else the sums that are still to be
        compared. `parameters` are those of the block: one that a run has gathered is as good as another.
        """
        count = min(len(self), len(again))
        if self.forms[:count] != again.forms[:count]:
            own = {id(parameter) for parameter in parameters()}
            for number, (ours, theirs) in enumerate(zip(self.forms, again.forms, strict=False)):
                are_gathered = type(ours) is int and type(theirs) is int and own.isdisjoint((ours, theirs))
                if ours != theirs and not are_gathered:
                    return number, ()
        if self.is_ready and self.places[:count] == again.places and self.sums[: len(again.sums)] == again.sums:
            return None, ()
        waiting: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        for number, (place, other) in enumerate(zip(self.places, again.places, strict=False)):
            if place == _NOT_COMPARED or other == _NOT_COMPARED:
                continue
            first, second = self.sums[place], again.sums[other]
            if isinstance(first, Tensor) and isinstance(second, Tensor) and first.device == second.device:
                waiting[place, other] = first, second
            elif isinstance(first, Tensor) or isinstance(second, Tensor) or first != second:
                return number, ()
        return None, list(waiting.values())


def digest(saved: Iterable[Tensor], may_be_unset: Callable[[Tensor], bool]) -> Digest:
    """Sum over what a run of a block saved, but for parameters and for what `may_be_unset`."""
    forms: list[Any] = []
    places: list[int] = []
    found: dict[Any, int] = {}
    distinct: list[Tensor] = []
    for tensor in saved:
        for part in (tensor,) if type(tensor) is Tensor else _parts(tensor):
            owner = part if part._base is None else part._base
            if type(owner) is not Tensor and isinstance(owner, nn.Parameter):
                forms.append(id(owner))
                places.append(_NOT_COMPARED)
                continue
            shape, dtype = part.shape, part.dtype
            forms.append((shape, dtype, dtype.is_complex and part.is_conj()))
            if dtype in _MAYBE_UNSET and may_be_unset(part):
                places.append(_NOT_COMPARED)
                continue
            memory = part.data_ptr(), dtype, shape, None if part.is_contiguous() else part.stride()
            place = found.get(memory)
            if place is None:
                if part.is_meta or not part.untyped_storage().nbytes():  # or freed, as what FSDP gathers for a while
                    places.append(_NOT_COMPARED)
                    continue
                place = found[memory] = len(distinct)
                distinct.append(part)
            places.append(place)
    sums = _sums(distinct)
    return Digest(forms, places, sums, all(type(each) is int for each in sums))


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """Yield what holds the values of a tensor of another class or layout, strided; itself if it has no values."""
    if is_parameter(tensor) or not has_values(tensor):
        yield tensor
        return
    for inner in inner_tensors(tensor):
        dense = inner if inner.layout is torch.strided else inner.to_dense()
        yield dense.int_repr() if dense.is_quantized else dense


def _sums(tensors: Sequence[Tensor]) -> Sequence[Sum]:
    sums: list[Sum] = []
    elsewhere: dict[torch.device, list[tuple[int, Tensor, int]]] = {}
    for tensor in tensors:
        dense, size = (tensor, tensor.nbytes) if tensor.is_contiguous() else _dense(tensor)
        if _is_readable(dense):
            sums.append(crc32(_bytes(size).from_address(dense.data_ptr())))
        else:
            elsewhere.setdefault(dense.device, []).append((len(sums), dense, size))
            sums.append(0)
    for device, memory in elsewhere.items():
        with unseen(), torch.no_grad(), without_autocast(device.type):
            made = sums_on_device([tensor for _, tensor, _ in memory], [size for *_, size in memory]).unbind()
        for (index, *_), each in zip(memory, made, strict=True):
            sums[index] = each
    return sums


def _is_readable(tensor: Tensor) -> bool:
    """Tell whether the memory of a tensor can be read without waiting for a device."""
    return tensor.is_cpu


def _dense(tensor: Tensor) -> tuple[Tensor, int]:
    """Return a tensor whose elements are all in so many bytes from its first on: a copy where there are gaps."""
    span = 1 + sum([(size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)])
    if span > tensor.numel():
        with unseen(), torch.no_grad():
            tensor = tensor.contiguous()
        span = tensor.numel()
    return tensor, span * tensor.element_size()


@lru_cache(4096)
def _bytes(size: int) -> Any:
    return c_char * size


def sums_on_device(tensors: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Return a sum for each of these tensors, of int64, over so many bytes from its start. All are on one device."""
    if tensors[0].is_cuda and _has_triton():
        from ckpt_surgery.runtime.self_check.digest_kernel import sums_in_one_launch

        return sums_in_one_launch(tensors, sizes)
    rows = [_sums_of_rows(tensor, size) for tensor, size in zip(tensors, sizes, strict=True)]
    ends = tuple(accumulate(map(len, rows)))
    up_to = (torch.cat(rows) * _odd_numbers(ends[-1], rows[0].device)).cumsum(0)
    return up_to[_indices(ends, rows[0].device)].diff(prepend=up_to.new_zeros(1))


@lru_cache(1)
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _sums_of_rows(tensor: Tensor, size: int) -> Tensor:
    """Return weighted sums of words of the memory of a tensor, row by row, of int64 and shape (rows,)."""
    flat = tensor.as_strided((size // tensor.element_size(),), (1,)).resolve_conj().resolve_neg()
    width = next(width for width in (8, 4, 2, 1) if size % width == 0)
    if flat.storage_offset() * flat.element_size() % width:
        flat = flat.clone()
    words = flat.view(INTEGERS[width])
    row = _row_of(len(words))
    if row is None:
        return sum_of_bits(flat).view(1)
    return (words.view(-1, row) * weights(torch.int64, tensor.device)[:row]).sum(1)


@lru_cache(1024)
def _row_of(words: int) -> int | None:
    """Return how many words make a row, so that there are few, and all are of one length; None where none are."""
    if words <= _LONGEST_ROW:
        return words
    return next((row for row in range(_LONGEST_ROW, words // _MOST_ROWS, -1) if words % row == 0), None)


@lru_cache(64)
def _odd_numbers(count: int, device: torch.device) -> Tensor:
    return torch.arange(1, 2 * count, 2, device=device)


@lru_cache(64)
def _indices(ends: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(ends, device=device) - 1
