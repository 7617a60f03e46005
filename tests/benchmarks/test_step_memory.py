"""The steps of a real size: what they may take beside transformers' own, and what is said where none fits."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.step_cost_runs import OURS, THEIRS, WAYS
from benchmarks.step_memory import Cost, figures

pytestmark = pytest.mark.torch

COST = Cost(100, (1.0,), (0.5,))


@pytest.mark.parametrize(
    ("ours", "missed"),
    [
        (COST, []),
        (Cost(102, (1.0,), (0.5,)), ["wrap_blocks / transformers: peak"]),
        (Cost(100, (1.03,), (0.5,)), ["wrap_blocks / transformers: a step"]),
        (None, ["wrap_blocks fits"]),
    ],
)
def test_more_memory_or_time_than_transformers_own_misses_a_target(ours: Cost | None, missed: list[str]) -> None:
    measured = figures({**dict.fromkeys(WAYS, COST), OURS: ours})
    assert [figure.name for figure in measured if figure.verdict == "missed"] == missed


def test_nothing_is_compared_with_what_does_not_fit() -> None:
    names = [figure.name for figure in figures({**dict.fromkeys(WAYS, COST), THEIRS: None})]
    assert "wrap_blocks / none: peak" in names
    assert not [name for name in names if name.startswith(("transformers:", "wrap_blocks / transformers"))]
