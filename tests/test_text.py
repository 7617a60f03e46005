"""Words and units that every message shares."""

from __future__ import annotations

import builtins

import pytest

from ckpt_surgery.text import ShownInNotebooks, error_line, flops, size, size_in_bytes, text_table


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


def test_a_table_in_a_notebook_is_the_text_that_it_is_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [["[b]locks", "1"]]
    outside = text_table(["what", "how many"], rows)
    shell = type("ZMQInteractiveShell", (), {})
    monkeypatch.setattr(builtins, "get_ipython", shell, raising=False)  # what a kernel of Jupyter has
    assert text_table(["what", "how many"], rows) == outside
    assert "[b]locks" in outside[-1]
    assert capsys.readouterr().out == ""


def test_a_notebook_shows_the_text_escaped_with_its_verdicts_marked() -> None:
    class Told(ShownInNotebooks):
        def __str__(self) -> str:
            return "a < b: FAILED\n  fault, not one\nfault: no"

    shown = Told()._repr_html_()
    assert "<b>a &lt; b: <b style" in shown
    assert shown.count("color: #e5484d") == 2
    assert "color: inherit" in shown
