"""Compute exact sums over the bits of all that a run of a block saves, at its end and in few launches.

The sums tell whether two runs saved the same; `fingerprints` tells how far they are apart. A sum is

1. on a CPU the CRC-32 of the memory. Its polynomial is primitive: no change within 32 bits goes unseen, and no swap of
   two 32-bit words within 512 MB;
2. on a GPU with Triton a weighted sum, for all tensors in one launch: see `digest_kernel`;
3. on other devices a weighted sum, by two operators per tensor.

Nothing waits for a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from ctypes import c_char
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from importlib.util import find_spec
from itertools import accumulate
from math import prod
from typing import Any, Literal
from zlib import crc32

import torch
from torch import Tensor, nn

from ckpt_surgery.runtime.tools.tensors import (
    has_values,
    is_parameter,
    laid_out,
    strided_parts,
    strides_of_view,
    unseen,
)

Sum = int | Tensor
"""A number, or a tensor of int64 and shape () that its device may not have computed yet."""

PERIOD = 65_537
"""How many weights there are. A prime, which divides no size of a model: so elements of one column do not all have the
same weight."""

_PART_FACTOR = 6_364_136_223_846_793_005
"""The factor of the sum so far before that of the next part is added, so that changes in two do not cancel out."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Dtypes of words, by their bytes. At most half as wide as the sum: so no weighted change is 0 modulo 2**64."""

_NOTHING: AbstractContextManager[Any] = nullcontext()

_NOT_COMPARED = -1
_STRIDED = torch.strided
_LONGEST_ROW, _MOST_ROWS = 65_536, 1024
"""The limits of cutting a tensor into rows of words, to all of which the same weights apply."""


_Kind = Literal["parameter", "own", "shared", "not compared"]
"""The kinds of saved tensors: a parameter, one to sum over, one in the same memory, or one not to compare."""


@dataclass(frozen=True, slots=True)
class DigestPlan:
    """Which of the saved tensors are compared: decided once, and checked again in each run.

    `forms` tell the parts of saved tensors apart: a parameter by its id, and the strides of a view that is not
    contiguous; others by shape, strides and dtype. `places` are the indices of their sums, and `owners` those of the
    saved tensors. `entries` have what a tensor of another run must match; None if one is of another class or layout.
    `readers` read the memory of each tensor to sum over; None if it cannot be read without waiting.
    """

    forms: Sequence[Any]
    places: Sequence[int]
    owners: Sequence[int]
    entries: Sequence[tuple[_Kind, Any, Any, Any]] | None
    readers: Sequence[Any] | None

    @classmethod
    def of(
        cls, parts: Sequence[Tensor], owners: Sequence[int], may_be_unset: Callable[[Tensor], bool], *, keep: bool
    ) -> tuple[DigestPlan, list[Tensor]]:
        """Decide which tensors count, and return those to sum over; with `keep`, other runs may use the plan."""
        forms: list[Any] = []
        places: list[int] = []
        entries: list[tuple[_Kind, Any, Any, Any]] = []
        found: dict[Any, int] = {}
        distinct: list[Tensor] = []
        for part in parts:
            owner = part if part._base is None else part._base
            shape, dtype, place = part.shape, part.dtype, _NOT_COMPARED
            if is_parameter(part):
                forms.append((id(owner), strides_of_view(part)))
                entries.append(("parameter", *forms[-1], None))
            else:
                strides = part.stride()
                forms.append((shape, strides, dtype))
                memory = part.data_ptr(), dtype, shape, strides
                if (place := found.get(memory, _NOT_COMPARED)) != _NOT_COMPARED:
                    entries.append(("shared", shape, strides, place))
                elif _has_nothing_to_read(part) or may_be_unset(part):
                    entries.append(("not compared", shape, None, dtype))
                else:
                    place = found[memory] = len(distinct)
                    distinct.append(part)
                    entries.append(("own", shape, strides, dtype))
            places.append(place)
        dense = [_dense(tensor) for tensor in distinct]
        pairs = zip(dense, distinct, strict=True)
        readable = all(whole is tensor and _is_readable(tensor) for (whole, _), tensor in pairs)
        readers = [(c_char * size).from_address for _, size in dense] if readable else None
        return cls(forms, places, owners, entries if keep else None, readers), distinct

    def tensors_in(self, saved: Sequence[Tensor]) -> list[Tensor] | None:
        """Return the tensors to sum over of what a run saved; None if the plan does not hold."""
        if self.entries is None or len(saved) > len(self.entries):
            return None
        distinct: list[Tensor] = []
        # the form is a shape, or the id of a parameter; the last is a dtype, or the place of a shared sum
        for tensor, (kind, form, strides, last) in zip(saved, self.entries, strict=False):
            if kind == "own":
                if type(tensor) is not Tensor or tensor.dtype is not last or tensor.layout is not _STRIDED:
                    return None
                if tensor.shape != form or tensor.stride() != strides or not tensor.untyped_storage().nbytes():
                    return None
                if tensor.is_neg() or (last.is_complex and tensor.is_conj()):
                    return None
                distinct.append(tensor)
            elif kind == "parameter":
                owner = tensor._base
                if id(tensor if owner is None else owner) != form or strides_of_view(tensor) != strides:
                    return None
            elif kind == "shared":
                if tensor.data_ptr() != distinct[last].data_ptr() or tensor.dtype is not distinct[last].dtype:
                    return None
                if tensor.shape != form or tensor.stride() != strides or tensor.is_neg() or tensor.is_conj():
                    return None
            elif tensor.shape != form or tensor.dtype is not last:
                return None
        return distinct


@dataclass(frozen=True, slots=True)
class Digest:
    """The sums of what one run saved, in `count` parts. It `is_ready` if all sums are numbers."""

    plan: DigestPlan
    count: int
    sums: Sequence[Sum]
    is_ready: bool

    @classmethod
    def of(
        cls,
        saved: Sequence[Tensor],
        may_be_unset: Callable[[Tensor], bool],
        plan: DigestPlan | None = None,
        like: DigestPlan | None = None,
    ) -> Digest:
        """Sum over what a run of a block saved, without parameters and tensors that `may_be_unset`.

        `plan` comes from another run, and is used if it still holds; otherwise the digest makes a new one. Sums follow
        the order in memory, so tensors are first laid out as in the run of the plan `like`.
        """
        if plan is not None and (distinct := plan.tensors_in(saved)) is not None:
            if plan.readers is not None:
                read = zip(plan.readers, distinct, strict=False)
                return cls(plan, len(saved), [crc32(reader(tensor.data_ptr())) for reader, tensor in read], True)
            sums, is_ready = _sums(distinct)
            return cls(plan, len(saved), sums, is_ready)
        owners: list[int] = []
        parts: list[Tensor] = []
        for number, tensor in enumerate(saved):
            for part in (tensor,) if _is_simple(tensor) else _parts(tensor):
                form = like.forms[len(parts)] if like is not None and len(parts) < len(like.forms) else None
                if form is not None and form[0] == part.shape and not is_parameter(part):
                    part = laid_out(part, form[1])
                parts.append(part)
                owners.append(number)
        plan, distinct = DigestPlan.of(parts, owners, may_be_unset, keep=all(map(_is_simple, saved)))
        sums, is_ready = _sums(distinct)
        return cls(plan, len(parts), sums, is_ready)

    def compare(
        self, again: Digest, parameters: Callable[[], Iterable[nn.Parameter]]
    ) -> tuple[int | None, Sequence[tuple[Tensor, Tensor]]]:
        """Compare another run with this one, as far as both came.

        Returns the number of the first tensor known to differ, if any, and otherwise the sums still to be compared.
        `parameters` are those of the block: one that a run has gathered is as good as another.
        """
        if self.is_ready and self.plan is again.plan and self.sums[: len(again.sums)] == again.sums:
            return None, ()
        pairs = zip(self.plan.forms[: self.count], again.plan.forms[: again.count], strict=False)
        if different := [number for number, (ours, theirs) in enumerate(pairs) if ours != theirs]:
            own = {id(parameter) for parameter in parameters()}
            for number in different:
                ours, theirs = self.plan.forms[number], again.plan.forms[number]
                are_parameters = ours[1:] == theirs[1:] and len(ours) == 2  # of equal strides
                if not (are_parameters and own.isdisjoint((ours[0], theirs[0]))):
                    return number, ()
        waiting: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        places = zip(self.plan.places[: self.count], again.plan.places[: again.count], strict=False)
        for number, (place, other) in enumerate(places):
            if place == _NOT_COMPARED or other == _NOT_COMPARED:
                continue
            first, second = self.sums[place], again.sums[other]
            if isinstance(first, Tensor) and isinstance(second, Tensor) and first.device == second.device:
                waiting[place, other] = first, second
            elif isinstance(first, Tensor) or isinstance(second, Tensor) or first != second:
                return number, ()
        return None, list(waiting.values())


def _is_simple(tensor: Tensor) -> bool:
    if is_parameter(tensor):
        return True
    if type(tensor) is not Tensor or tensor.layout is not _STRIDED:
        return False
    return not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def _has_nothing_to_read(tensor: Tensor) -> bool:
    """Tell whether a tensor has no elements in memory: on "meta", or freed, as FSDP frees what it gathered."""
    return not has_values(tensor) or not tensor.numel() or not tensor.untyped_storage().nbytes()


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """Yield strided tensors with the values of a tensor of any class or layout; itself if it has no values."""
    if is_parameter(tensor) or not has_values(tensor):
        yield tensor
        return
    with unseen(), torch.no_grad():
        for part in strided_parts(tensor):
            yield part.resolve_conj().resolve_neg()


def _sums(tensors: Sequence[Tensor]) -> tuple[Sequence[Sum], bool]:
    """Return the sum over each tensor, and whether all sums are numbers."""
    sums: list[Sum] = []
    elsewhere: dict[torch.device, list[tuple[int, Tensor, int]]] = {}
    for tensor in tensors:
        dense, size = (tensor, tensor.nbytes) if tensor.is_contiguous() else _dense(tensor)
        if _is_readable(dense):
            sums.append(crc32((c_char * size).from_address(dense.data_ptr())))
        else:
            elsewhere.setdefault(dense.device, []).append((len(sums), dense, size))
            sums.append(0)
    for device, memory in elsewhere.items():
        with unseen(), torch.no_grad(), without_autocast(device.type):
            computed = sums_on_device([tensor for _, tensor, _ in memory], [size for *_, size in memory]).unbind()
        for (index, *_), each in zip(memory, computed, strict=True):
            sums[index] = each
    return sums, not elsewhere


def sum_over(parts: Sequence[Tensor]) -> Tensor:
    """Return one exact sum over the bits of strided tensors on one device, as int64 of shape ()."""
    sums, _ = _sums([part for part in parts if not _has_nothing_to_read(part)])
    of_parts = [each if isinstance(each, Tensor) else torch.tensor(each) for each in sums]
    return reduce(lambda total, more: _PART_FACTOR * total + more, of_parts, parts[0].new_zeros((), dtype=torch.int64))


def _is_readable(tensor: Tensor) -> bool:
    """Tell whether a tensor's memory can be read without waiting for a device."""
    return tensor.is_cpu


def _dense(tensor: Tensor) -> tuple[Tensor, int]:
    """Return a tensor with the same elements in one piece of memory, overlapping ones once, and its size in bytes.

    It is a copy if there are gaps between the elements.
    """
    count = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if stride > count and size > 1:
            sizes = [size if stride else 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
            with unseen(), torch.no_grad():
                tensor = tensor.as_strided(sizes, tensor.stride()).contiguous()
            return tensor, prod(sizes) * tensor.element_size()
        count += (size - 1) * stride
    return tensor, count * tensor.element_size()


def sums_on_device(tensors: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Return one int64 sum for each of these tensors on one device, over the given number of bytes from its start."""
    if tensors[0].is_cuda and _has_triton():
        from ckpt_surgery.runtime.self_check.digest_kernel import sums_in_one_launch

        return sums_in_one_launch(tensors, sizes)
    # a call for each, which frees the copy of one tensor before the next is made
    rows = [_sums_of_rows(tensor, size) for tensor, size in zip(tensors, sizes, strict=True)]
    ends = tuple(accumulate(map(len, rows)))
    odd_numbers, last = _rows_up_to(ends, rows[0].device)
    up_to = (torch.cat(rows) * odd_numbers).cumsum(0)
    return up_to[last].diff(prepend=up_to.new_zeros(1))


@lru_cache(1)
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _sums_of_rows(tensor: Tensor, size: int) -> Tensor:
    """Return weighted sums over a tensor's memory, word by word, one for each row: int64 of shape (rows,)."""
    flat = tensor.as_strided((size // tensor.element_size(),), (1,))
    width = next(width for width in (4, 2, 1) if size % width == 0)
    if flat.storage_offset() * flat.element_size() % width:
        flat = flat.clone()
    words, factors = flat.view(_INTEGERS[width]), weights(torch.int64, tensor.device)
    row = _row_of(len(words))
    whole = len(words) // row * row
    rows = (words[:whole].view(-1, row) * factors[:row]).sum(1)
    if whole < len(words):
        rows = torch.cat((rows, (words[whole:] * factors[: len(words) - whole]).sum().view(1)))
    return rows


@lru_cache(1024)
def _row_of(words: int) -> int:
    """Return the number of words in a row, so that there are few rows, of equal length if possible."""
    if words <= _LONGEST_ROW:
        return words
    rows = range(_LONGEST_ROW, words // _MOST_ROWS, -1)
    return next((row for row in rows if words % row == 0), _LONGEST_ROW)


@lru_cache(64)
def _rows_up_to(ends: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return an odd number for each row, by which it is weighted, and the index of the last row before each end."""
    return torch.arange(1, 2 * ends[-1], 2, device=device), torch.tensor(ends, device=device) - 1


@cache
def weights(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the fixed random weights: odd ones for int64, or normal ones for a float dtype."""
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.int64:
        factors = torch.randint(-(2**62), 2**62, (PERIOD,), generator=generator) * 2 + 1
    else:
        factors = torch.randn(PERIOD, generator=generator, dtype=dtype)
    return factors.to(device)


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Return a context that switches autocast off for a device type, if it is on."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else _NOTHING
