"""The pictures show the figures that were measured, can be drawn again, and stay small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.live_repair import TINY, WAYS, kept_bytes
from docs import draw

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
    picture = draw.pictures()["live-repair.svg"]
    monkeypatch.undo()
    assert draw.words(picture) != draw.words(drawn("live-repair.svg"))


@pytest.mark.transformers4
def test_the_figures_of_the_tiny_model_are_those_of_this_release() -> None:
    assert FIGURES["tiny"] == {"model": TINY, "kept_bytes": kept_bytes()}


def test_checkpointing_that_is_only_switched_on_saves_nothing() -> None:
    without, enabled, wrapped = (FIGURES["real"][way] for way in WAYS)
    assert enabled["peak_bytes"] > 0.95 * without["peak_bytes"]
    assert wrapped["peak_bytes"] < 0.75 * without["peak_bytes"]


def test_pictures_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in draw.FOLDER.glob("*.svg")}
    assert {"live-repair.svg", "conditions.svg"} <= sizes.keys()
    assert [name for name, size in sizes.items() if size > MOST_BYTES] == []
