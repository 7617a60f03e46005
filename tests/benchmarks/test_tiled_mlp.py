"""The benchmark of tiled MLPs: small parts are measured, each target can be missed, the json has it all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from benchmarks import tiled_mlp
from benchmarks.device import PROCESSOR
from benchmarks.tiled_mlp import AIM, LAYER, MLP, TOY, UNTILED, Cost, Size, costs, figures, main, parts

pytestmark = pytest.mark.torch

TINY = Size(512, TOY.options)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled_mlp, "SMALL", TINY)


def cost(**changed: object) -> Cost:
    return replace(Cost(0, 10, 120, (1.2, 1.3, 1.1), {"weight": torch.ones(2)}), **changed)  # type: ignore[arg-type]


def verdicts(name: str, tiled: Cost) -> dict[str, str]:
    plain = Cost(60, 60, 100, (1.0, 1.0, 1.0), {"weight": torch.ones(2)})
    by_name = figures(name, {UNTILED: plain, AIM: tiled})
    return {figure.name: figure.verdict for figure in by_name if figure.verdict}


def test_every_target_can_be_missed() -> None:
    kept = verdicts(MLP, cost())
    assert set(kept.values()) == {"ok"}
    way = f"MLP, {AIM} shards"
    missing = {
        f"{way}: peak, untiled / tiled": cost(peak=11),
        f"{way}: FLOPs, tiled / untiled": cost(flops=126),
        f"{way}: a step, tiled / untiled": cost(seconds=(1.4, 1.6, 1.6)),
        f"{way}: gradients, largest difference": cost(gradients={"weight": torch.ones(2) + 1e-3}),
    }
    assert set(missing) == set(kept)
    for name, tiled in missing.items():
        assert verdicts(MLP, tiled) == {**kept, name: "missed"}
    assert verdicts(MLP, cost(gradients={}))[f"{way}: gradients, largest difference"] == "missed"


def test_of_a_layer_only_gradients_have_a_target() -> None:
    assert list(verdicts(LAYER, cost())) == [f"layer, {AIM} shards: gradients, largest difference"]


def test_what_is_kept_and_its_peak_fall_with_shards() -> None:
    torch.set_num_threads(1)
    by_shards = costs(parts(TINY)[MLP], TINY, PROCESSOR, 1)
    middle = 512 * 256 * 4
    assert by_shards[UNTILED].kept == 4 * middle
    assert by_shards[AIM].kept == 0
    assert by_shards[UNTILED].peak > 8 * by_shards[AIM].peak
    assert 9 * by_shards[AIM].flops == 11 * by_shards[UNTILED].flops  # the recompute runs two of three products


def test_the_json_says_what_was_measured(tmp_path: Path) -> None:
    target = tmp_path / "new" / "tiled.json"
    assert main(["--rounds", "1", "--out", str(target)]) in (0, 1)  # times of steps so short mean nothing
    figures = json.loads(target.read_text(encoding="utf-8"))["figures"]
    assert figures["MLP, 16 shards: gradients, largest difference"]["verdict"] == "ok"
    assert figures["layer, untiled: peak"]["unit"] == "MiB"
    (tmp_path / "file").touch()
    assert main(["--rounds", "1", "--out", str(tmp_path / "file" / "tiled.json")]) == 2
