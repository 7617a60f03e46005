"""The largest size that fits is found in few steps, however the peak rises."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("transformers")

from ckpt_surgery.planning.largest import largest

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("peak", [lambda n: 100 + 7 * n, lambda n: 100 + n * n, lambda n: 100 + 3 * (n // 10)])
@pytest.mark.parametrize("unit", [1, 8])
@pytest.mark.parametrize("memory", [50, 107, 1000, 12345])
def test_the_largest_that_fits_is_found(peak: Callable[[int], int], unit: int, memory: int) -> None:
    asked: list[int] = []

    def probe(number: int) -> int:
        asked.append(number)
        return peak(number)

    found = largest(probe, memory, start=8, unit=unit, most=None)
    assert found % unit == 0
    assert found == 0 or peak(found) <= memory
    assert peak(found + unit) > memory
    assert len(asked) == len(set(asked)) <= 20


def test_it_is_at_most_what_the_model_takes() -> None:
    assert largest(lambda n: n, 1000, start=8, unit=8, most=100) == 96
