"""Words and units that every message shares."""

from __future__ import annotations

import pytest

from ckpt_surgery.text import error_line, flops, one_line, size, size_in_bytes, size_unit


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


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 FLOP"), (999, "999 FLOP"), (1000, "1.0 kFLOP"), (215 * 10**9, "215 GFLOP"), (10**23, "100000 EFLOP")],
)
def test_operations_have_the_unit_that_fits(count: int, text: str) -> None:
    assert flops(count) == text


@pytest.mark.parametrize(
    ("said", "count"),
    [("80GB", 80 * 10**9), (" 80 GiB ", 80 * 2**30), ("1.5tb", 15 * 10**11), ("80", None), ("-1GB", None), ("", None)],
)
def test_a_size_with_its_unit_is_read(said: str, count: int | None) -> None:
    assert size_in_bytes(said) == count


def test_the_unit_of_the_largest_serves_a_whole_axis() -> None:
    assert size_unit(3 * 2**20) == ("MiB", 2**20)
    assert size_unit(1) == ("B", 1)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("too\n  small"), "ValueError: too small"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ValueError("x" * 288), "ValueError: " + "x" * 288),
        (ValueError("x" * 300), "ValueError: " + "x" * 285 + "..."),
    ],
    ids=["several lines", "no text", "long", "too long"],
)
def test_an_error_is_one_line_with_its_type(error: BaseException, line: str) -> None:
    assert error_line(error) == line


def test_what_an_error_says_is_one_line() -> None:
    assert one_line(ValueError("too\n  small\n")) == "too small"
