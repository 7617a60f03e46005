"""The benchmark of `long_context`: each difference is seen, and the table says why a class was not compared."""

from __future__ import annotations

import json
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from benchmarks.long_context import (
    PAGE,
    NotCompared,
    Problem,
    Step,
    Way,
    apart,
    conclude,
    differs,
    distance,
    double_precision,
    examine,
    farthest,
    problem,
    row_of,
)
from benchmarks.long_context_cards import (
    CardRow,
    Line,
    Recipe,
    cards_table,
    read_cards,
    whole_peaks,
    write_cards,
)

pytestmark = pytest.mark.torch


def row(name: str = "Model", **changed: Any) -> dict[str, Any]:
    return {"case": name, "way": Way.FUSED, "far": 1e-15, "why": "", "cut": 2, **changed}


ROWS = [
    row("A"),
    row("B", far=1.0),
    row("C", way=Way.MADE, why="for __setitem__"),
    row("D", way=Way.ALONE, why="its head is not an nn.Linear"),
    row("F", tiled=2, cut=0, not_cut="Layer: it mixes tokens"),
    {"case": "E", "kind": Problem.NOT_BUILT, "why": "no inputs"},
    {"case": "G", "problem": "exit code 1"},
]


@pytest.mark.parametrize("value", [1e-11, inf, nan])
def test_every_difference_is_seen(value: float) -> None:
    own: Step = (1.0, {})
    other: Step = (1.0 + value, {})
    assert not differs(row_of(row(far=farthest(own, own, own))))
    assert differs(row_of(row(far=farthest(own, other, own))))
    assert differs(row_of(row(far=value)))


def test_a_class_is_compared_and_one_that_cannot_be_says_why() -> None:
    found = row_of({"case": "GPT2LMHeadModel", **examine("GPT2LMHeadModel")})
    assert (found["way"], found["problem"], found["tiled"], found["cut"]) == (Way.FUSED, None, 2, 2)
    assert not differs(found)
    with pytest.raises(NotCompared, match="ValueError: why"), problem(Problem.RAISED, ValueError):
        raise ValueError("why")


def test_a_gradient_that_is_missing_or_another_is_a_difference() -> None:
    own = (1.0, {"weight": torch.ones(2)})
    assert apart(own, own) == (0.0, 0.0)
    assert apart(own, None) == (float("inf"), float("inf"))
    assert apart(own, (1.0, {}))[1] == float("inf")
    assert apart(own, (1.5, {"weight": torch.ones(2) * 3})) == (0.5, 2.0)


def test_a_step_that_differs_is_named_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert not conclude([each for each in ROWS if each["case"] != "B"], 9, False)
    assert conclude(ROWS, 9, False)
    assert "| `B` | 1e+00 |" in capsys.readouterr().out


def test_the_page_names_every_class_that_is_not_fused() -> None:
    figures = {"versions": {"torch": "2", "transformers": "5"}, "classes": 9, "rows": [*map(row_of, ROWS)]}
    written = PAGE.text(json.loads(json.dumps(figures)))
    assert "7 of 9 classes" in written
    assert "5 classes were compared" in written
    assert "In 4 of them nothing differs" in written
    assert "In 4 classes all blocks were cut at their attention, in 0 some, and in 1 none." in written
    assert "| `F` | Layer: it mixes tokens |" in written
    for name in "BCDEFG":
        assert f"| `{name}` |" in written
    assert "`A`" not in written
    assert "bfloat16 of 0 classes" in written


def test_how_far_gradients_are_apart_is_relative_to_their_norm() -> None:
    exact = (1.0, {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])})
    other = (1.0, {"a": torch.tensor([3.0, 0.5]), "b": torch.tensor([4.0])})
    assert distance(exact, exact) == 0.0
    assert distance(exact, other) == pytest.approx(0.1)
    assert distance(exact, None) == distance(exact, (1.0, {})) == float("inf")


def test_casts_to_float32_are_left_out_only_inside() -> None:
    one = torch.ones(1, dtype=torch.float64)
    with double_precision():
        assert one.float().dtype == one.to(torch.float32).dtype == torch.float64
    assert one.float().dtype == one.to(torch.float32).dtype == torch.float32


def test_the_table_of_cards_has_what_fits_below_every_line(tmp_path: Path) -> None:
    row = CardRow("8B", True, (Line(20 * 10**9, 1e4), Line(10 * 10**9, 1e5)), 262144)
    assert row.peak(10**5) == 21e9
    assert row.peak(10**6) == 110e9
    assert row.tokens(24) == 120_000, "the second line has 22.08 GB first, at 120,800"
    assert row.tokens(20) == 0
    write_cards([row, row], tmp_path / "cards.json")
    assert read_cards(tmp_path / "cards.json") == [row, row]
    assert cards_table([row]).splitlines()[-1] == (
        "| 8B, `host=True` | 120,000 | 341,000 | 636,000 | 1,197,000 | 0.100 MB | 0.26 MB |"
    )


def test_the_kept_figures_train_an_8b_model_on_500_000_tokens_in_80_gb() -> None:
    rows = {(row.recipe, row.host): row for row in read_cards()}
    whole = rows["Llama 8B, all weights, 8-bit AdamW", True]
    assert whole.tokens(80) >= 500_000
    assert round(whole.peak(500_000) / 1e9) == 64, "as the page says"
    assert rows["Llama 8B, LoRA", False].lines[0].slope < 62_000
    assert rows["Llama 8B, LoRA", True].lines[-1].slope < 36_000


@pytest.mark.parametrize("host", [False, True], ids=["here", "on the host"])
def test_two_blocks_say_what_four_do(host: bool) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "num_hidden_layers": 4}
    recipe = Recipe("tiny", {**config, **sizes}, lora=False, optimizer="adamw-8bit")
    two, four = (whole_peaks(recipe, 4, layers=layers, host=host)[1] for layers in (2, 4))
    assert two == pytest.approx(four, rel=1e-3)
