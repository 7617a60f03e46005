"""The steps on a GPU: every target can be missed, and a step without room has no figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from benchmarks import gpu_steps
from benchmarks.device import PROCESSOR, Device, Steps, device_of, own_switch
from benchmarks.gpu_steps import (
    ATTENTION,
    CHECKED,
    IN_TURN,
    LONG,
    NONE,
    OFFLOAD,
    OURS,
    PROVED,
    SAVE_ON_CPU,
    SELECTIVE,
    THEIRS,
    TOPICS,
    WAYS,
    figures,
    keeps_attention,
    llama,
    timed_steps,
)

pytestmark = pytest.mark.torch

STEPS = Steps((2.0, 1.0, 3.0), (0.1,), 100, 0.5, 7.0)
WATCHED = {"right": True, "block": 1}


Changes = Mapping[str, Mapping[str, Any] | None]


def kept(topic: str, lengths: Iterable[int], changes: Changes = MappingProxyType({})) -> dict[str, Any]:
    """Return measurements in which all ways but these took the same."""
    made: dict[str, Any] = {}
    for length in lengths:
        for way in TOPICS[topic].ways:
            plain = {**asdict(STEPS), **(WATCHED if way.startswith("guard") else {})}
            change = changes.get(way, {})
            made[f"{length} tokens, {way}"] = None if change is None else {**plain, **change}
    return made


def missed(topic: str, changes: Changes = MappingProxyType({}), tokens: int = LONG) -> list[str]:
    made = figures(TOPICS[topic], (tokens,), kept(topic, (tokens,), changes))
    return [figure.name.partition(": ")[2] for figure in made if figure.verdict == "missed"]


@pytest.mark.parametrize("topic", TOPICS)
def test_ways_that_take_the_same_meet_every_target(topic: str) -> None:
    assert missed(topic) == []


@pytest.mark.parametrize(
    ("topic", "way", "change", "names"),
    [
        ("offload", OFFLOAD, {"seconds": (2.07,)}, [f"a step, {OFFLOAD} / {OURS}"]),
        ("offload", OFFLOAD, {"peak": 101}, [f"peak, {OFFLOAD} / {THEIRS}"]),
        ("offload", OFFLOAD, {"loss": 0.4}, [f"loss, {OFFLOAD} / {OURS} - 1"]),
        ("offload", SAVE_ON_CPU, {"norm": 7.1}, [f"gradient norm, {SAVE_ON_CPU} / {OURS} - 1"]),
        ("save", ATTENTION, {"seconds": (2.07,)}, [f"a step, {ATTENTION} / {way}" for way in (OURS, SELECTIVE)]),
        ("save", ATTENTION, {"peak": 102}, [f"peak, {ATTENTION} / {SELECTIVE}"]),
        ("ways", OURS, {"peak": 102}, [f"peak, {OURS} / transformers"]),
        ("ways", OURS, {"seconds": (2.05,)}, [f"a step, {OURS} / transformers"]),
        ("checks", IN_TURN, {"seconds": (2.04,)}, [f"a step, {IN_TURN} / {OURS}"]),
        ("checks", CHECKED, {"seconds": (2.2,)}, [f"a step, {CHECKED} / {OURS}"]),
        ("checks", PROVED, {"right": False}, [f"no false alarm, {PROVED}"]),
    ],
)
def test_every_target_can_be_missed(topic: str, way: str, change: dict[str, Any], names: list[str]) -> None:
    assert missed(topic, {way: change}) == names


def test_offload_of_short_texts_has_no_target_of_time() -> None:
    assert missed("offload", {OFFLOAD: {"seconds": (9.0,)}}, 8192) == []


def test_what_did_not_fit_has_no_figures_and_ours_has_to() -> None:
    others: dict[str, None] = dict.fromkeys((OURS, THEIRS, SAVE_ON_CPU))
    made = figures(TOPICS["offload"], (LONG,), kept("offload", (LONG,), others))
    assert {figure.name.rpartition("step, ")[2].rpartition("peak, ")[2] for figure in made} == {OFFLOAD}
    assert missed("offload", {OFFLOAD: None}) == [f"{OFFLOAD} fits"]


def test_every_way_gives_the_gradients_of_no_checkpointing() -> None:
    ids = torch.randint(100, (1, 32), generator=torch.Generator().manual_seed(0))
    taken = {}
    for name, way in WAYS.items():
        model = llama(2, gpu_steps.TOY)
        with way(model):
            taken[name] = timed_steps(model, ids, PROCESSOR, warm_up=1, steps=1)
    same = taken[NONE].loss, taken[NONE].norm
    assert {
        name for name, steps in taken.items() if (steps.loss, steps.norm) != pytest.approx(same, rel=1e-3)
    } == set()


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

    assert (keeps_attention(None, operator).name == "MUST_SAVE") is kept
    assert (operator_name(operator) in VOCABULARY["attention"]) is kept


def test_a_release_without_its_own_offload_leaves_that_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_steps, "library_offloads", lambda: False)
    monkeypatch.setattr(gpu_steps, "measured", lambda *_, **__: asdict(STEPS))
    out = tmp_path / "offload.json"
    gpu_steps.main(["offload", "--toy", "--out", str(out)])
    content = json.loads(out.read_text(encoding="utf-8"))
    assert content["notes"] == [gpu_steps.NO_THEIRS]
    assert not any(name.endswith(f", {THEIRS}") for name in content["figures"])


def test_a_gpu_is_asked_through_torch_and_the_processor_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(name: str) -> int:
        asked.append(name)
        return 7

    names = ["synchronize", "empty_cache", "reset_peak_memory_stats", "max_memory_allocated"]
    for name in names:
        monkeypatch.setattr(torch.cuda, name, partial(ask, name))
    monkeypatch.setattr(torch.accelerator, "empty_host_cache", partial(ask, "empty_host_cache"))
    for device in (PROCESSOR, Device("cuda", "a GPU")):
        assert asked == []
        device.synchronize()
        device.empty_cache()
        device.reset_peak()
        assert device.peak() > 0
    assert asked == [names[0], names[1], "empty_host_cache", *names[2:]]


def test_the_processor_takes_the_place_of_a_gpu_only_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of(toy=False) is None
    assert device_of(toy=True) is PROCESSOR


@pytest.mark.parametrize(("methods", "name"), [("new old", "new"), ("old", "old")])
def test_transformers_own_switch_is_taken_by_either_name(methods: str, name: str) -> None:
    names = {"new": "activation_checkpointing_enable", "old": "gradient_checkpointing_enable"}
    model = type("Released", (), {names[method]: method for method in methods.split()})
    assert own_switch(model, "enable") == name
