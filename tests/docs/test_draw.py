"""The pictures show the measured figures, can be drawn again, and stay small."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from benchmarks.live_repair import TINY, WAYS, kept_bytes
from docs import draw
from tests.docs.commands import ROOT, ours

FIGURES = json.loads((draw.FOLDER / "live_repair.json").read_text(encoding="utf-8"))
MOST_BYTES = 60_000


def drawn(name: str) -> str:
    return (draw.FOLDER / name).read_text(encoding="utf-8")


def test_the_pictures_show_what_is_drawn_from_the_figures() -> None:
    pytest.importorskip("matplotlib")
    for name, picture in draw.pictures().items():
        assert draw.words(drawn(name)) == draw.words(picture), "run: python -m docs.draw"


def test_a_picture_of_other_figures_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    changed = json.loads(json.dumps(FIGURES))
    changed["tiny"]["kept_bytes"]["wrapped"] += 1
    (tmp_path / "live_repair.json").write_text(json.dumps(changed), encoding="utf-8")
    monkeypatch.setattr(draw, "FOLDER", tmp_path)
    page = draw.OUT_OF_MEMORY.read_text(encoding="utf-8")
    (tmp_path / "page.md").write_text(page.replace("| 8.28 GB |", "| 8.29 GB |"), encoding="utf-8")
    monkeypatch.setattr(draw, "OUT_OF_MEMORY", tmp_path / "page.md")
    pictures = draw.pictures()
    monkeypatch.undo()
    assert [name for name, picture in pictures.items() if draw.words(picture) == draw.words(drawn(name))] == []


@pytest.mark.transformers4
def test_the_figures_of_the_tiny_model_are_those_of_this_release() -> None:
    assert FIGURES["tiny"] == {"model": TINY, "kept_bytes": kept_bytes()}


def test_checkpointing_that_is_only_switched_on_saves_nothing() -> None:
    without, enabled, wrapped = (FIGURES["real"][way] for way in WAYS)
    assert enabled["peak_bytes"] > 0.95 * without["peak_bytes"]
    assert wrapped["peak_bytes"] < 0.75 * without["peak_bytes"]


ROWS = draw.table_rows(draw.OUT_OF_MEMORY.read_text(encoding="utf-8"), "with")


def peaks_in(printed: str) -> list[str]:
    (peaks,) = re.findall(r"^ +peak +(\S+ GiB) +(\S+ GiB)", printed, re.MULTILINE)
    return list(peaks)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in ROWS if row.startswith("`")])
def test_the_peaks_on_the_page_are_those_that_explain_says(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpt_surgery.planning.answer.StateLever.of", lambda _: None)  # it takes one more step
    code, printed = ours("explain", "MistralForCausalLM", "--tokens", "4096", *shlex.split(row.strip("`")))
    assert code == 0
    assert peaks_in(printed) == ROWS[row]


def test_the_first_peaks_are_those_of_the_command_on_the_page() -> None:
    first, *others = ROWS
    assert all(row.startswith("`") for row in others)
    page = draw.OUT_OF_MEMORY.read_text(encoding="utf-8")
    assert "$ ckpt_surgery explain MistralForCausalLM --tokens 4096\n" in page  # test_pasted.py runs it
    assert peaks_in(page) == ROWS[first]


def test_the_measured_peaks_on_the_page_are_those_of_the_page_of_the_gpu() -> None:
    steps = draw.table_rows(draw.OUT_OF_MEMORY.read_text(encoding="utf-8"), "a step")
    gpu = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    for way, (peak, seconds) in steps.items():
        (row,) = [line for line in gpu.splitlines() if line.startswith(f"| {way.replace('(model)', '')} |")]
        assert row.endswith(f"| {seconds}, {peak} |")


def test_pictures_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in draw.FOLDER.glob("*.svg")}
    assert {"live-repair.svg", "conditions.svg"} <= sizes.keys()
    assert [name for name, size in sizes.items() if size > MOST_BYTES] == []
