"""The demo shows what is lost as released and kept after `wrap_blocks`."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from benchmarks import demo
from ckpt_surgery.text import text_table

SMALL = {"hidden_size": 32, "intermediate_size": 128}


@pytest.mark.torch
def test_the_demo_shows_healthy_and_lost_gradients_and_memory_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "WARM_UP", 1)
    shown = {}
    for case in demo.CASES:
        sizes = {**case.sizes, **SMALL}
        sizes |= {name: 4 for name in sizes if name.endswith("_heads")}
        sizes |= {name: 128 for name in sizes if name.endswith("put_dim")}
        rows = list(demo.rows_of(replace(case, sizes=sizes, tokens=min(case.tokens, 16))))
        assert [row[1] for row in rows] == ["without", "as released", "wrap_blocks"]
        assert rows[2][4] == "equal"
        shown[case.title] = rows
    assert shown["Llama"][1][4] == shown["Llama 3.2 Vision"][1][4] == "equal"
    assert shown["Llama 3.2 Vision"][0][2] == shown["Llama 3.2 Vision"][1][2] != shown["Llama 3.2 Vision"][2][2]
    assert re.fullmatch(r"\d+ of \d+ lost", shown["Llama 4, reentrant"][1][4])
    assert re.fullmatch(r"off by up to \d+ %", shown["Mixtral, reentrant"][1][4])
    lines = text_table(demo.HEADINGS, [row for rows in shown.values() for row in rows])
    assert max(map(len, lines)) <= 80
