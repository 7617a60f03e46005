"""The page of `check`: each finding with its lines of code, and its repair."""

from __future__ import annotations

from html import unescape
from pathlib import Path

import pytest

from ckpt_surgery.codemods import RULES
from ckpt_surgery.report.check_page import to_html
from ckpt_surgery.report.html_detail import coded
from ckpt_surgery.static.check import check
from ckpt_surgery.static.render.report import CheckReport, sentence
from tests.codemods.snippets import TOY
from tests.codemods.tools import tree

LATE = """\
from torch.utils.checkpoint import checkpoint

def forward(layers, hidden_states):
    for layer in layers:
        hidden_states = checkpoint(lambda x: layer(x) if x.ndim < 4 else x, hidden_states, use_reentrant=False)
    return hidden_states
"""


def page(root: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tree(root, files))
    return to_html(CheckReport.of(check(["models"], jobs=1), RULES))


def test_a_repair_is_shown_as_what_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = page(tmp_path, {"models/toy/modeling_toy.py": TOY}, monkeypatch)
    assert "<h2><code>models/toy/modeling_toy.py</code></h2>" in shown
    assert ">CKPT001</span>" in shown
    assert '<span class="changed failed">-class ' in shown
    assert '<span class="changed ok">+class ' in shown
    assert "+from ...modeling_layers import GradientCheckpointingLayer</span>" in shown


def test_what_a_person_repairs_is_shown_with_its_line_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = page(tmp_path, {"models/late.py": LATE}, monkeypatch)
    marked = shown.partition("<mark>")[2].partition("</mark>")[0]
    assert unescape(marked) == f"    5  {LATE.splitlines()[4]}"
    assert "x.ndim &lt; 4" in marked
    assert 'class="changed' not in shown


def test_a_file_that_is_gone_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree(tmp_path, {"models/late.py": LATE}))
    report = CheckReport.of(check(["models"], jobs=1), RULES)
    Path("models/late.py").unlink()
    assert "CKPT012" in to_html(report)
    assert coded(sentence(report.shown[0])) in to_html(report)
