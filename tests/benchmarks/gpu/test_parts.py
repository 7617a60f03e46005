"""The parts of `make gpu` run on the processor with toy sizes, by their own code; their commands are understood."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import nn

from benchmarks import check_cost, offload, policy_cost
from benchmarks.device import PROCESSOR
from benchmarks.device_steps import Steps, own_switch, timed_steps
from benchmarks.gpu.page import bars, section, write_page
from benchmarks.gpu.parts import PARTS, Part
from benchmarks.gpu.result import Result, State

pytestmark = pytest.mark.torch

ROOT = Path(check_cost.__file__).parents[1]
BENCHMARKS = [part for part in PARTS if part.name != "tests"]
ELSEWHERE = {"tests", "offload", "plan_on_gpu", "longest", "step_cost", "tiled_mlp"}
"""Those whose toy run is in another test."""
STEPS = Steps((2.0, 1.0, 3.0), 100, 0.5, 7.0)


@pytest.mark.parametrize("part", BENCHMARKS, ids=lambda part: part.name)
def test_its_command_is_understood(part: Part, tmp_path: Path) -> None:
    parse = importlib.import_module(part.arguments[1])._options
    out = tmp_path / "figures.json"
    for dry in (False, True):
        options = parse(part.command(out, dry=dry)[1 + len(part.arguments) :])
        assert options.out == out
        assert getattr(options, "toy", False) is dry
        assert getattr(options, "resume", False) is part.resumes


def test_those_without_a_toy_run_of_their_own_run_through(tmp_path: Path) -> None:
    results = []
    for part in PARTS:
        if part.name in ELSEWHERE:
            continue
        file = tmp_path / f"{part.name}.json"
        command = part.command(file, dry=True)[1 + len(part.arguments) :]
        assert importlib.import_module(part.arguments[1]).main(command) in (0, 1), "toy sizes may miss targets"
        content = json.loads(file.read_text(encoding="utf-8")) | {"state": State.ENDED}
        results.append(Result.of(part, content))
        assert results[-1].ran
        assert all(figure["values"] for figure in results[-1].figures.values())
    write_page(tmp_path / "gpu.md", results, {"device": "the processor"}, dry=True)
    text = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert "none of them is of a GPU" in text
    assert {part.name for part in PARTS if (tmp_path / "gpu" / f"{part.name}.svg").exists()} >= {
        "check_cost",
        "fused_loss",
        "step_memory",
    }


@pytest.mark.slow
def test_the_tests_marked_gpu_pass_on_the_processor(tmp_path: Path) -> None:
    file = tmp_path / "tests.json"
    part = PARTS[0]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(part.command(file, dry=True), cwd=ROOT, env=environment, capture_output=True, check=True)
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content["failed"] == []
    assert content["figures"]["tests passed"]["values"][0] >= 40


def test_the_bars_of_a_real_run_are_those_of_its_figures() -> None:
    """What a page draws is named by the starts of names: each stands for a figure that the benchmark makes."""
    kept = {f"{tokens} tokens, {way}": STEPS.to_dict() for tokens in (8192, 32768) for way in policy_cost.WAYS}
    names = [figure.name for figure in policy_cost.figures(kept, (8192, 32768))]
    part = next(part for part in PARTS if part.name == "policies")
    plain = {name: {"values": [1.0], "unit": "s", "target": "", "verdict": ""} for name in names}
    drawn = bars(Result(part, figures=plain))["s"]
    assert len([name for name in drawn if "8K: a step, " in name]) >= len(policy_cost.WAYS)
    real = [start for start in part.plotted if "K: " in start]
    assert all(any(name.startswith(start) for name in drawn) for start in real)


def verdicts(**changed: Any) -> dict[str, str]:
    """The verdicts of policies where the way that keeps attention has measured something else."""
    kept = {f"8192 tokens, {way}": STEPS.to_dict() for way in policy_cost.WAYS}
    kept[f"8192 tokens, {policy_cost.ATTENTION}"] |= changed
    return {figure.name: figure.verdict for figure in policy_cost.figures(kept, (8192,)) if figure.verdict}


def test_every_target_of_a_policy_can_be_missed() -> None:
    fine = verdicts()
    assert set(fine.values()) == {"ok"}
    ours, full, theirs = policy_cost.ATTENTION, policy_cost.FULL, policy_cost.TORCH
    missing: dict[tuple[str, ...], dict[str, Any]] = {
        (f"8K: a step, {ours} / {full}", f"8K: a step, {ours} / {theirs}"): {"seconds": (2.07,)},
        (f"8K: peak, {ours} / {theirs}",): {"peak": 102},
        (f"8K: loss, {ours} / {full} - 1",): {"loss": 0.4},
        (f"8K: gradient norm, {ours} / {full} - 1",): {"norm": 7.1},
    }
    for names, changed in missing.items():
        assert verdicts(**changed) == {**fine, **dict.fromkeys(names, "missed")}


def test_what_has_no_room_has_no_figures() -> None:
    kept: dict[str, Any] = dict.fromkeys(f"8192 tokens, {way}" for way in policy_cost.WAYS)
    kept[f"8192 tokens, {policy_cost.ATTENTION}"] = STEPS.to_dict()
    assert len(policy_cost.figures(kept, (8192,))) == 2


def test_a_way_without_room_is_told_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def steps(model: Any, *_: object, **__: object) -> Steps:
        if not model.is_gradient_checkpointing:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return STEPS

    monkeypatch.setattr(policy_cost, "timed_steps", steps)
    out = tmp_path / "policies.json"
    assert policy_cost.main(["--toy", "--tokens", "64", "--out", str(out)]) == 0
    part = next(part for part in PARTS if part.name == "policies")
    result = Result.of(part, json.loads(out.read_text(encoding="utf-8")) | {"state": State.ENDED})
    assert result.ok, "a device with less memory is no fault"
    text = section(result, "")
    assert f"The device has too little memory for: 64 tokens, {policy_cost.NONE}." in text
    assert f"64 tokens: peak, {policy_cost.FULL}" in text


@pytest.mark.parametrize(
    ("operator", "kept"),
    [
        (torch.ops.aten._scaled_dot_product_flash_attention.default, True),
        (torch.ops.aten._scaled_dot_product_cudnn_attention.default, True),
        (torch.ops.aten._scaled_dot_product_efficient_attention.default, True),
        (torch.ops.aten.mm.default, False),
        (torch.ops.aten._softmax.default, False),
    ],
    ids=str,
)
def test_the_policy_of_torch_keeps_what_save_attention_keeps(operator: Any, kept: bool) -> None:
    from ckpt_surgery.runtime.selective.policies import VOCABULARY, operator_name

    assert (policy_cost.keeps_attention(None, operator).name == "MUST_SAVE") is kept
    assert (operator_name(operator) in VOCABULARY["attention"]) is kept


def test_a_dear_check_and_a_false_alarm_are_missed() -> None:
    right = {"right": True, "proved": 24, "block": 1}
    kept = {way.name: {**STEPS.to_dict(), **(right if way.guarded else {})} for way in check_cost.WAYS}
    assert {figure.verdict for figure in check_cost.figures(kept)} == {"", "ok"}
    kept[check_cost.IN_TURN.name] = {**STEPS.to_dict(), "seconds": (2.04,)}
    kept[check_cost.CHECKED.name] = {**STEPS.to_dict(), "seconds": (2.2,)}
    kept[check_cost.PROVED.name] |= {"right": False}
    assert [figure.name for figure in check_cost.figures(kept) if figure.verdict == "missed"] == [
        "a step, self-check, one block a step / no check",
        "a step, self-check, every block / no check",
        "guard, a block proved in every step: no false alarm",
    ]


def test_the_device_is_waited_for_around_each_step_and_the_peak_is_that_of_the_timed_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    class Watched:
        kind = "cpu"

        def synchronize(self) -> None:
            calls.append("wait")

        def reset_peak(self) -> None:
            calls.append("reset")

        def peak(self) -> int:
            calls.append("peak")
            return 7

    model = nn.Linear(2, 1)

    def loss() -> torch.Tensor:
        calls.append("forward")
        made: torch.Tensor = model(torch.ones(3, 2)).sum()
        return made

    device: Any = Watched()
    steps = timed_steps(model, loss, device, warm_up=1, steps=2)
    step = ["wait", "forward", "wait"]
    assert calls == [*step, "reset", *step, *step, "peak"]
    assert (len(steps.seconds), steps.peak) == (2, 7)
    assert Steps.of(json.loads(json.dumps(steps.to_dict()))) == steps


@pytest.mark.parametrize(("methods", "name"), [("new old", "new"), ("old", "old")])
def test_transformers_own_switch_is_taken_by_either_name(methods: str, name: str) -> None:
    names = {"new": "activation_checkpointing_enable", "old": "gradient_checkpointing_enable"}
    model = type("Released", (), {names[method]: method for method in methods.split()})
    assert own_switch(model, "enable") == name


def test_a_release_without_offload_of_its_own_leaves_that_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload, "theirs_is_there", lambda: False)
    out = tmp_path / "offload.json"
    offload.main(["--toy", "--gpu-only", "--steps", "1", "--tokens", "64", "--out", str(out)])
    content = json.loads(out.read_text(encoding="utf-8"))
    assert content["notes"] == [offload.NO_THEIRS]
    assert not any(name.endswith(f", {offload.THEIRS}") for name in content["figures"])


def test_the_processor_takes_the_place_of_a_gpu_only_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert sys.modules["benchmarks.device"].device_of(toy=False) is None
    assert sys.modules["benchmarks.device"].device_of(toy=True) is PROCESSOR
