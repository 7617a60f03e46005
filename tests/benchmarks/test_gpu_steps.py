"""The steps on a GPU: every target can be missed, and a step without room has no figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from benchmarks import gpu_steps
from benchmarks.device import PROCESSOR, wanted_device
from benchmarks.gpu_steps import (
    ATTENTION,
    CHECKED,
    IN_TURN,
    LIBRARY,
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
    Steps,
    figures,
    keeps_attention,
    llama,
    timed_steps,
)

pytestmark = pytest.mark.torch

STEPS = Steps((2.0, 1.0, 3.0), 100, 0.5, 7.0)

Changes = Mapping[str, Mapping[str, Any] | None]


def kept(topic: str, lengths: Iterable[int], changes: Changes = MappingProxyType({})) -> dict[str, Any]:
    """Return measurements in which all ways but these took the same."""
    made: dict[str, Any] = {}
    for length in lengths:
        for way in TOPICS[topic].ways:
            plain = replace(STEPS, right=True if way.startswith("guard") else None)
            change = changes.get(way, {})
            made[f"{length} tokens, {way}"] = None if change is None else replace(plain, **change)
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
        ("offload", OURS, {"peak": 102}, [f"peak, {OURS} / transformers"]),
        ("offload", OURS, {"seconds": (2.05,)}, [f"a step, {OURS} / transformers"]),
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
    others: dict[str, None] = dict.fromkeys((OURS, LIBRARY, THEIRS, SAVE_ON_CPU))
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


def test_the_processor_takes_the_place_of_a_gpu_only_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert wanted_device("x", toy=False) is None
    assert wanted_device("x", toy=True) is PROCESSOR
