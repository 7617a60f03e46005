"""The benchmark of `long_context`: each difference is seen, and the table says why a class was not compared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from benchmarks.long_context import apart, differs, double_precision, peaks, table

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]


def row(name: str = "Model", **changed: Any) -> dict[str, Any]:
    compared = {"loss": 0.0, "gradients": 1e-15, "undone": 0.0, "peak": 10, "own_peak": 30, "fused": 1, "made": {}}
    return {"class": name, **compared, "heads": {}, "tiled": 0, "not_tiled": {}, **changed}


@pytest.mark.parametrize("level", ["loss", "gradients", "undone"])
@pytest.mark.parametrize("value", [1e-9, float("inf"), float("nan")])
def test_every_difference_is_seen(level: str, value: float) -> None:
    assert not differs(row())
    changed: dict[str, Any] = {level: value}
    assert differs(row(**changed))


def test_a_gradient_that_is_missing_or_another_is_a_difference() -> None:
    own = (1.0, {"weight": torch.ones(2)}, 0)
    assert apart(own, own) == (0.0, 0.0)
    assert apart(own, None) == (float("inf"), float("inf"))
    assert apart(own, (1.0, {}, 0))[1] == float("inf")
    assert apart(own, (1.5, {"weight": torch.ones(2) * 3}, 0)) == (0.5, 2.0)


def test_the_table_counts_and_says_why() -> None:
    lines = table(
        [
            row("A"),
            row("B", gradients=1.0),
            row("C", fused=0, made={"__setitem__": 1}),
            row("D", fused=0, heads={"D": "its head is no nn.Linear"}),
            {"class": "E", "problem": "not built: no inputs"},
        ]
    )
    assert lines == [
        "5 classes: 4 compared, 2 of them without logits",
        "within 1e-10: 3",
        "  B: loss 0.0e+00, gradients 1.0e+00",
        "1 x logits made for __setitem__: C",
        "1 x its head is no nn.Linear: D",
        "1 x not built: E",
        "peak, own / long_context, median of those fused: 3.00",
    ]


def test_casts_to_float32_are_left_out_only_inside() -> None:
    one = torch.ones(1, dtype=torch.float64)
    with double_precision():
        assert one.float().dtype == one.to(torch.float32).dtype == torch.float64
    assert one.float().dtype == one.to(torch.float32).dtype == torch.float32


def test_a_class_is_compared_and_kept(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    command = [sys.executable, "-m", "benchmarks.long_context", "--rows", str(rows), "GPT2LMHeadModel"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)  # it limits what it may take
    assert done.returncode == 0, done.stderr
    assert "1 class: 1 compared, 1 of them without logits" in done.stdout
    assert "GPT2LMHeadModel" in rows.read_text()


def test_the_peak_falls() -> None:
    own, ours = peaks("LlamaForCausalLM", vocab_size=4000, hidden_size=32, num_hidden_layers=2, head_dim=8, tokens=512)
    assert ours < own / 3
