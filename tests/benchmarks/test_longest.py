"""The search for the longest sequence finds a device's limit and says what stopped it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from benchmarks import longest as benchmark
from benchmarks.device import PROCESSOR
from benchmarks.longest import LORA_HOST, LORA_OURS, LORA_THEIRS, TOY, figures, longest, main
from ckpt_surgery.long_sequences.long_context import LONG_CONTEXT

pytestmark = pytest.mark.torch


class Gpu:
    """A device that fits this many tokens and takes this many seconds for a step of a thousand."""

    def __init__(self, most: int, seconds: float = 0.0) -> None:
        self.most, self.seconds = most, seconds
        self.tried: list[int] = []

    def step(self, tokens: int) -> Mapping[str, Any]:
        self.tried.append(tokens)
        fits = tokens <= self.most
        return {"fits": fits, "seconds": self.seconds * (tokens / 1000) ** 2 if fits else 0.0}


@pytest.mark.parametrize("most", [999, 1000, 1900, 5400, 9000, 70_000])
def test_the_longest_is_found_to_one_part_in_eight(most: int) -> None:
    gpu = Gpu(most)
    found = longest(gpu.step, 1000, 100, None)
    assert found is not None
    fits, fails, _ = found
    if most < 1000:
        assert (fits, fails) == (0, 1000)
        return
    assert fits <= most < fails
    assert fails - fits <= max(100, fits // 8)
    assert len(gpu.tried) == len(set(gpu.tried)) <= 12


def test_no_step_is_started_that_would_take_too_long() -> None:
    gpu = Gpu(10**9, seconds=benchmark.LONGEST_STEP / 10)  # 2,000 tokens take 4 tenths of the limit, 4,000 more
    found = longest(gpu.step, 1000, 100, None)
    assert found is not None
    assert found[:2] == (2000, 0)
    assert gpu.tried == [1000, 2000]


def test_nothing_beyond_what_the_host_holds_is_tried() -> None:
    gpu = Gpu(10**9)
    assert longest(gpu.step, 1000, 100, 5000) == (4000, 0, 0.0)


def test_a_step_that_fails_ends_the_search() -> None:
    assert longest(lambda tokens: None, 1000, 100, None) is None


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit any model to 100 tokens on the device; the search may try more than in a dry run."""

    def no_room(model: Any, optimizer: Any, tokens: int, layers: int, device: Any) -> float:
        if tokens > 100:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return 0.5

    monkeypatch.setattr(benchmark, "_step", no_room)
    monkeypatch.setattr(benchmark, "TOY", replace(TOY, step=16, most=1000))


def run(tmp_path: Path) -> dict[str, Any]:
    out = tmp_path / "longest.json"
    main(["--toy", "--resume", "--out", str(out)])
    content: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return content


@pytest.mark.usefixtures("full")
def test_the_end_of_memory_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = run(tmp_path)
    for way in (LORA_OURS, LORA_HOST, LORA_THEIRS):
        assert content["figures"][f"{way}: longest that fits"]["values"] == [96]
        assert content["figures"][f"{way}: shortest that does not"]["values"] == [112]
    assert content["figures"]["LoRA: longest, long_context / transformers"]["verdict"] == "ok"
    whole = (benchmark.WHOLE_HOST, benchmark.WHOLE_OURS)
    assert content["notes"] == [f"{way}: not measured, because bitsandbytes is not installed" for way in whole]
    monkeypatch.setattr(benchmark, "trained", lambda *_: pytest.fail("nothing is left to be measured"))
    assert run(tmp_path)["figures"] == content["figures"]


@pytest.mark.usefixtures("full")
def test_a_model_that_does_not_fit_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(benchmark, "trained", no_room)
    assert "LoRA, long_context: a sequence of 64 tokens does not fit" in run(tmp_path)["notes"]


@pytest.mark.usefixtures("full")
def test_an_error_is_no_lack_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise RuntimeError("no kernel image is available for execution on the device")

    monkeypatch.setattr(benchmark, "trained", broken)
    content = run(tmp_path)
    assert any("no kernel image" in error for error in content["errors"].values())
    assert content["figures"] == {}


@pytest.mark.parametrize("way", [LORA_OURS, LORA_HOST], ids=str)
def test_the_first_layers_run_cut_and_all_gradients_are_there(way: benchmark.Way) -> None:
    model: Any
    model, optimizer = benchmark.trained(way, TOY, PROCESSOR)
    ran: list[int] = []
    for number, layer in enumerate(model.get_submodule("model.layers").children()):
        layer.register_forward_hook(lambda *_, number=number: ran.append(number))
    benchmark._step(model, optimizer, 1100, 2, PROCESSOR)  # more than a tile
    assert set(ran) == {0, 1}
    cuts = list(vars(model)[LONG_CONTEXT].cuts.values())
    assert [(each.calls, each.reason, each.parked) for each in cuts] == [(1, None, way.host)] * 2 + [(0, None, False)]
    assert model.config.num_hidden_layers == 3
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)
    assert len(optimizer.state) == sum(parameter.requires_grad for parameter in model.parameters())


def test_shorter_than_transformers_is_missed() -> None:
    kept = {
        benchmark.trial_name(LORA_OURS, 64, TOY.tried_layers): {"fits": True, "seconds": 1.0, "peak": 1},
        benchmark.trial_name(LORA_THEIRS, 128, TOY.layers): {"fits": True, "seconds": 1.0, "peak": 1},
    }
    assert [figure.verdict for figure in figures(kept, TOY)][-1] == "missed"
