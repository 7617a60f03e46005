"""Fingerprints differ wherever bits do, and are the same for every layout of the same tensor."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from ckpt_surgery.runtime.self_check.fingerprints import Fingerprint, magnitude

pytestmark = [pytest.mark.torch]

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.int64, torch.uint8, torch.bool]


def some_tensor(dtype: torch.dtype, shape: tuple[int, ...] = (37, 53)) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(shape, generator=generator) * 50).to(dtype)


def bits(tensor: Tensor) -> int:
    made = Fingerprint.of(tensor)
    assert made is not None
    return int(made.bits)


@pytest.mark.parametrize("size", [4096 * 2 + 2, 32 * 65_537 * 2 + 131], ids=["a few", "more than weights"])
def test_one_element_of_a_large_tensor_that_changes_changes_both_sums(size: int) -> None:
    tensor = some_tensor(torch.float32, (size,))
    before = Fingerprint.of(tensor)
    for place in (0, size // 2, size - 1):
        changed = tensor.clone()
        changed[place] += 1e6
        after = Fingerprint.of(changed)
        assert before is not None
        assert after is not None
        assert before.bits != after.bits
        assert before.values != after.values


def test_a_view_of_any_layout_has_a_sum_that_depends_on_its_values_alone() -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(most: int) -> int:
        return int(torch.randint(1, most, (), generator=generator))

    for number in range(40):
        whole = torch.randn(draw(6), draw(40), draw(40), generator=generator).to(DTYPES[number % 4])
        view = whole.transpose(draw(3) - 1, 2)[:, :: draw(3)][..., draw(3) - 1 :]
        fresh = torch.empty_strided(view.shape, view.stride(), dtype=view.dtype).copy_(view)
        assert bits(view) == bits(fresh)


KINDS: dict[str, Tensor] = {
    "empty": torch.ones(0, 3),
    "scalar": torch.tensor(2.0),
    "one element": torch.ones(7)[3:4].as_strided((1,), (5,)),
    "expanded": torch.ones(1).expand(4, 5),
    "conjugated": torch.ones(3, dtype=torch.complex64).conj(),
    "nan": torch.full((5,), float("nan")),
    "float8": torch.ones(3).to(torch.float8_e4m3fn),
    "huge sparse": torch.sparse_coo_tensor(torch.tensor([[0], [9]]), torch.ones(1), (10**7, 10**7)),
}


@pytest.mark.parametrize("tensor", KINDS.values(), ids=KINDS)
def test_every_kind_of_tensor_has_one(tensor: Tensor) -> None:
    expected = Fingerprint.of(tensor)
    assert expected is not None
    assert Fingerprint.of(tensor.clone(), expected) is expected
    assert magnitude(tensor) >= 0 or bool(tensor.isnan().any())


def test_the_same_memory_in_other_strides_differs_and_equal_values_do_not() -> None:
    tensor = some_tensor(torch.float32, (6, 6))
    expected = Fingerprint.of(tensor)
    assert Fingerprint.of(tensor.t(), expected) is not expected
    assert Fingerprint.of(tensor.t().contiguous().t(), expected) is expected


def test_a_tensor_without_values_has_none() -> None:
    assert Fingerprint.of(torch.ones(3, device="meta")) is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_expected_one_is_returned_only_for_equal_bits_shape_and_dtype(dtype: torch.dtype) -> None:
    tensor = some_tensor(dtype)
    expected = Fingerprint.of(tensor)
    assert Fingerprint.of(tensor.clone(), expected) is expected
    changed, swapped = tensor.clone(), tensor.clone()
    changed[17, 3] = ~tensor[17, 3] if dtype is torch.bool else tensor[17, 3] + 3
    swapped[0], swapped[5] = tensor[5], tensor[0]
    others = [changed, tensor.flatten(), tensor.real.to(torch.float16)]
    for other in others if dtype is torch.bool else [*others, swapped]:
        made = Fingerprint.of(other, expected)
        assert made is not expected
        assert made is not None
        assert (made.shape, made.dtype) == (other.shape, other.dtype)


def test_the_sum_of_values_tells_how_far_apart_two_are() -> None:
    tensor = some_tensor(torch.float32, (64, 64))
    noise = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)) * magnitude(tensor) / 64
    for share in (1e-1, 1e-3):
        ours, theirs = Fingerprint.of(tensor), Fingerprint.of(tensor + share * noise)
        assert ours is not None
        assert theirs is not None
        assert ours.values is not None
        assert theirs.values is not None
        apart = abs(float(ours.values) - float(theirs.values)) / magnitude(tensor)
        assert share / 10 < apart < share * 10
