"""The survey of `explain`: its results for a model type, why others fail, and its page."""

from __future__ import annotations

import pytest

from benchmarks.explain_survey import measure, model_types, reason
from benchmarks.survey import TOO_LARGE, TOO_LONG

pytestmark = pytest.mark.torch


def test_a_model_type_is_explained() -> None:
    row = measure("gpt2")
    assert row["model"] == "GPT2LMHeadModel"
    assert row["parameters"] == 124_439_808 * 2
    assert row["kept"] > 0
    assert row["dtype"] == "bfloat16"
    assert "gpt2" in model_types()


def test_one_that_computes_in_float32_is_explained_in_it() -> None:
    assert measure("fnet")["dtype"] == "float32"


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (TOO_LONG, "it took too long"),
        (TOO_LARGE, "it took too much memory"),
        ("PlanningError: a step of X cannot run on shapes (x.py, line 1): no", "its step cannot run on shapes"),
        ("PlanningError: no inputs are known that X accepts: no", "its forward accepts no inputs that are tried"),
        ("PlanningError: the constructor of X cannot run: X requires the timm library", "a package that it needs"),
    ],
)
def test_a_reason_is_said_in_words(problem: str, why: str) -> None:
    assert reason(problem).startswith(why)
