"""Words and units that every message shares."""

from __future__ import annotations

import pytest

from ckpt_surgery.text import size, size_unit


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (-2048, "-2.0 KiB"),
        (150 * 1024, "150 KiB"),
        (2**31, "2.0 GiB"),
        (2**55, "32768 TiB"),
    ],
)
def test_bytes_have_the_unit_that_fits(count: int, text: str) -> None:
    assert size(count) == text


def test_the_unit_of_the_largest_serves_a_whole_axis() -> None:
    assert size_unit(3 * 2**20) == ("MiB", 2**20)
    assert size_unit(1) == ("B", 1)
