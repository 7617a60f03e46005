"""The fastest way to checkpoint is chosen once, by the first batch's predicted time; gradients stay the same."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from ckpt_surgery import PlanningError, SurgeryError, SurgeryWarning, wrap_blocks, wrap_fastest
from ckpt_surgery.cli import run
from ckpt_surgery.guarding.takeover import Takeover, TakeoverOptions
from ckpt_surgery.planning.devices import DEVICES
from ckpt_surgery.planning.fastest import FastestChoice, FastestWrap, Way, WayCosts, _card
from ckpt_surgery.planning.shapes import ShapesOnly
from ckpt_surgery.torch_names import FakeTensorMode
from tests.planning.fastest_script import SIZE, SLOW, batch
from tests.rank_cases import Results, case_results
from tests.zoo.tiny_models import llama

pytestmark = pytest.mark.torch

H200 = DEVICES["h200"]


def gradients(model: Any, *lengths: int) -> list[Tensor]:
    """Take a step whose loss adds up batches of these lengths; return the gradients."""
    model.zero_grad()
    sum(model(**batch(length)).loss for length in lengths).backward()
    return [parameter.grad for parameter in model.parameters()]


def costs(*seconds: float) -> list[WayCosts]:
    return [WayCosts(*each) for each in zip(Way, seconds, (4, 3, 3, 5), strict=True)]


@pytest.mark.parametrize(
    ("layers", "length", "way"), [(8, 8192, Way.NOTHING_KEPT), (2, 32768, Way.ATTENTION_OFFLOADED)]
)
def test_on_an_h200_long_sequences_keep_attention_on_the_host(layers: int, length: int, way: Way) -> None:
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32, "num_key_value_heads": 4}
    with ShapesOnly():
        model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, **sizes)).bfloat16().train()
    wrap_blocks(model)
    ids = torch.ones(1, length, dtype=torch.long)
    told = WayCosts.of(model, {"input_ids": ids, "labels": ids}, H200)
    assert FastestChoice.of(tuple(told), H200, H200.memory).way is way


@pytest.mark.parametrize(
    ("seconds", "memory", "way"),
    [
        ((1.0, 1.0, 0.96, 0.96), 9, Way.NOTHING_KEPT),
        ((1.0, 1.0, 0.90, 0.89), 9, Way.ATTENTION_OFFLOADED),
        ((1.0, 1.5, 1.40, 0.89), 9, Way.ATTENTION),
        ((1.0, 1.5, 1.40, 0.89), 5, Way.NOTHING_KEPT),
        ((1.0, 1.0, 0.96, 0.89), 4, Way.OFFLOADED),
        ((1.0, 1.0, 0.90, 0.89), 3, Way.OFFLOADED),
        ((1.0, float("inf"), float("inf"), 0.80), 4, Way.NOTHING_KEPT),
    ],
)
def test_the_simplest_way_near_the_fastest_is_taken_or_else_the_smallest(
    seconds: tuple[float, ...], memory: int, way: Way
) -> None:
    assert FastestChoice.of(tuple(costs(*seconds)), H200, memory).way is way


@pytest.mark.both
def test_the_first_batch_that_trains_decides_for_later_ones() -> None:
    model, plain = llama(2), llama(2, use_cache=False)
    wrapped = FastestWrap(wrap_blocks(model), SLOW)
    with torch.no_grad():
        model(**batch(8))
    gradients(model.eval(), 8)
    assert str(wrapped).endswith("until a batch trains uncompiled (of several ranks, in DistributedDataParallel)")
    copied = copy.deepcopy(model)
    model.train()
    for length in (256, 8):
        assert all(map(torch.equal, gradients(model, length), gradients(plain, length)))
        assert wrapped.choice is not None
        assert wrapped.choice.way is Way.ATTENTION_OFFLOADED
    assert wrapped.surgery.stats is not None
    assert wrapped.surgery.stats.tensors
    assert wrapped.surgery.policies[0].kept
    assert "\nattention kept, all offloaded: the simplest within 5%" in str(wrapped)
    assert all(map(torch.equal, gradients(copied.train(), 8), gradients(plain, 8))), "a copy chooses nothing"
    wrapped.undo()
    assert wrapped.undone
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("way", Way)
def test_each_way_has_the_gradients_of_no_checkpointing(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [0.1 if each is way else 1.0 for each in Way]
    monkeypatch.setattr(WayCosts, "of", lambda *_: costs(*seconds))
    model, plain = llama(3), llama(3)
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    wrap_fastest(model, device="A100")
    with wrap_fastest(model, device="H200", every_n=2) as wrapped:
        assert all(map(torch.equal, gradients(model, 64, 96), gradients(plain, 64, 96)))
        assert wrapped.choice == FastestChoice(way, tuple(costs(*seconds)), H200, H200.memory)
        options = wrapped.surgery.options
        assert {"offload": options.offload, "save": options.save} == way.options
        assert options.every_n == 2
    model.zero_grad()
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before


def test_with_no_prediction_nothing_is_kept_and_a_warning_says_why() -> None:
    model, plain = llama(2), llama(2)
    model.lock = threading.Lock()
    wrapped = FastestWrap(wrap_blocks(model), SLOW)
    with pytest.warns(SurgeryWarning, match="kept, as no way could be predicted: .* because of its attribute lock"):
        assert all(map(torch.equal, gradients(model, 8), gradients(plain, 8)))
    assert wrapped.choice is not None
    assert wrapped.choice.way is Way.NOTHING_KEPT


def test_what_rules_out_a_choice_is_named() -> None:
    model = llama(2)
    wrap_fastest(model)
    with pytest.warns(SurgeryWarning, match="on the device cpu, of which no figures are known: name a device"):
        model(**batch(8))
    wrap_fastest(model, device="H200")
    wrap_blocks(model, offload="cpu")
    with pytest.warns(SurgeryWarning, match="predicted: offload or save was given"):
        model(**batch(8))
    wrap_blocks(model, offload_pinned=100)
    told = {each.way: each.problem for each in WayCosts.of(model, batch(), SLOW)}
    assert "of pinned host memory, and may take 100 B" in told[Way.OFFLOADED]
    assert "of pinned host memory" in told[Way.ATTENTION_OFFLOADED]
    assert not told[Way.NOTHING_KEPT] + told[Way.ATTENTION]
    with pytest.raises(SurgeryError, match="by itself: leave out save"):
        wrap_fastest(model, save="attention")
    with pytest.raises(PlanningError, match="no device is called"):
        wrap_fastest(model, device="B1000")


def test_a_way_the_model_lacks_is_left_out_and_copies_take_their_time() -> None:
    with wrap_blocks(model := nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)))):
        told = {each.way: each for each in WayCosts.of(model, {"*0": torch.ones(8, 64)}, replace(SLOW, link=1.0))}
    assert "attention" in told[Way.ATTENTION].problem
    assert told[Way.OFFLOADED].seconds > 1000 > told[Way.NOTHING_KEPT].seconds, "its copies hold up the step"


def test_the_memory_of_a_card_is_what_is_free_and_what_torch_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    stands_for = {"get_device_name": "NVIDIA H200", "mem_get_info": (50, 100), "memory_reserved": 30}
    for name, value in (stands_for | {"memory_allocated": 500}).items():
        monkeypatch.setattr(torch.cuda, name, lambda _, value=value: value)
    with FakeTensorMode():
        model = nn.ParameterList([torch.empty(10, 10, device="cuda")])
    assert _card(model, None) == (H200, 80, 100)
    assert _card(model, SLOW)[0] is SLOW
    with pytest.raises(PlanningError, match="the model is on cpu and cuda:0"):
        _card(nn.ModuleList([model, nn.Linear(2, 2)]), None)


def test_run_chooses_in_the_first_whole_step_and_takes_no_copy_for_a_model() -> None:
    said: list[str] = []
    model, expected = llama(2), gradients(llama(2), 256)
    takeover = Takeover(TakeoverOptions(wrap=True, operation=partial(run._fastest, SLOW, {})), said.append)
    takeover.install()
    try:
        for _ in range(2):
            assert all(map(torch.equal, gradients(model, 256), expected))
        (trained,) = takeover.trained
        assert "\nattention kept, all offloaded: the simplest" in trained.table
        assert trained.report is not None
        assert not trained.report.faults
    finally:
        takeover.remove()
    assert not said


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return case_results("tests.planning.fastest_script", tmp_path_factory.mktemp("fastest"), SIZE)


@pytest.mark.slow
def test_ranks_choose_together(results: Results) -> None:
    first, second = results["lengths"]
    assert first == second
    assert first["choice"][0] == Way.ATTENTION_OFFLOADED
    unknown = [rank["choice"][:2] for rank in results["one rank knows no figures"]]
    assert [way for way, _ in unknown] == [Way.NOTHING_KEPT] * SIZE
    assert unknown[0][1] == "not on another rank"
    assert [rank["choice"] for rank in results["no wrapper"]] == [None] * SIZE
    assert all(rank["equal"] for ranks in results.values() for rank in ranks)
