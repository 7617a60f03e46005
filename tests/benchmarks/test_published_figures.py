"""Predictions are close to published figures, and the page is up to date."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.published_figures import PAGE, Row, long_text, million, mosaic, offload, page

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_all_predictions_are_close_and_on_the_page() -> None:
    rows = [*mosaic(), *offload(), *long_text(), *million()]
    assert [row.name for row in rows if not row.close] == []
    assert page(rows) == PAGE.read_text(encoding="utf-8")


def test_a_prediction_that_is_off_is_seen() -> None:
    row = Row("A", "peak", 100.0, 104.9, "GiB")
    assert row.close
    assert not dataclasses.replace(row, predicted=105.1).close
    assert not dataclasses.replace(row, predicted=94.9).close
    assert dataclasses.replace(row, predicted=94.9, explained="it counts something else").close
