"""Every fault that is planted into the checkpointing of a model is caught at its level; healthy models have none."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from torch import nn

from ckpt_surgery.measure.results import MODES, QUICK_LEVELS, Level, Mode
from ckpt_surgery.measure.switch import Switch
from ckpt_surgery.measure.verify import Examination, verify
from ckpt_surgery.runtime.wrap import wrap_blocks
from ckpt_surgery.tiny import tiny_model
from tests.zoo import planted
from tests.zoo.planted import switch_with

pytestmark = pytest.mark.torch

CLASSES = (
    "LlamaForCausalLM",
    "GPT2LMHeadModel",
    "BertForMaskedLM",
    "MixtralForCausalLM",
    "T5ForConditionalGeneration",
    "ViTForImageClassification",
    "Qwen2ForCausalLM",
    "OPTForCausalLM",
    "WhisperForConditionalGeneration",
    "Gemma2ForCausalLM",
)
WITH_MASK = ("LlamaForCausalLM", "MixtralForCausalLM", "OPTForCausalLM", "Qwen2ForCausalLM", "Gemma2ForCausalLM")
WITH_CACHE = ("Gemma2ForCausalLM", "LlamaForCausalLM", "T5ForConditionalGeneration")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

FAULTS: Mapping[type[planted.Fault], tuple[Level, tuple[str, ...]]] = {
    planted.MaskDropped: ("values", WITH_MASK),
    planted.OtherDropout: ("values", CLASSES),
    planted.Scaled: ("values", CLASSES),
    planted.SmallSignsFlipped: ("values", CLASSES),
    planted.StaleWeights: ("loop", CLASSES),
    planted.GradientOverwritten: ("loop", CLASSES),
    planted.LatestArguments: ("loop", CLASSES),
    planted.SecondBackward: ("loop", CLASSES),
    planted.FrozenBase: ("loop", CLASSES),
    planted.AutocastDropped: ("precision", CLASSES),
    planted.HalfPrecision: ("precision", CLASSES),
    planted.ActivationsHeld: ("cost", CLASSES),
    planted.RecomputedHeld: ("loop", CLASSES),
    planted.Growing: ("loop", CLASSES),
    planted.CacheWrittenAgain: ("state", WITH_CACHE),
}
"""Each fault with the level that tells it, and the classes where it can be planted."""


class Planter:
    """A switch that plants whichever fault is its `kind`."""

    def __init__(self) -> None:
        self.kind: type[planted.Fault] = planted.Fault
        self._switches: dict[type[planted.Fault], Switch] = {}

    def __call__(self, model: nn.Module, mode: Mode | None) -> None:
        self._switches.setdefault(self.kind, switch_with(self.kind))(model, mode)


@cache
def model_of(name: str) -> tuple[Any, Mapping[str, Any]]:
    """The same model for all tests: `verify` leaves it as it was."""
    tiny = tiny_model(getattr(transformers, name))
    tiny.model.train()
    return tiny.model, tiny.inputs


@cache
def examination_of(name: str, level: Level) -> tuple[Examination, Planter]:
    """The examination of a class at one level, whose reference all faults share."""
    planter = Planter()
    model, inputs = model_of(name)
    return Examination(model, inputs, levels=["run", level], switch=planter), planter


def cases() -> list[Any]:
    """Each fault in each class, in one mode and the next in the other."""
    named = [(fault, level, name) for fault, (level, names) in FAULTS.items() for name in names]
    return [
        pytest.param(fault, level, name, MODES[place % 2], id=f"{fault.__name__}, {name}, {MODES[place % 2]}")
        for place, (fault, level, name) in enumerate(named)
    ]


@pytest.mark.parametrize(("fault", "level", "name", "mode"), cases())
def test_a_planted_fault_is_caught_at_its_level(
    fault: type[planted.Fault], level: Level, name: str, mode: Mode
) -> None:
    examination, planter = examination_of(name, level)
    planter.kind = fault
    run = examination.examine(mode)
    planter.kind = planted.Fault
    assert run.outcome("run") == "failed" or run.outcome(level) == "failed", str(run)


@pytest.mark.parametrize("name", CLASSES)
def test_no_fault_is_seen_where_none_is_planted(name: str) -> None:
    model, inputs = model_of(name)
    report = verify(model, inputs, levels=QUICK_LEVELS, switch=switch_with(planted.Fault))
    assert report.ok, str(report)


def in_dtype(name: str, dtype: torch.dtype) -> tuple[Any, Mapping[str, Any]]:
    """A copy of the model in a dtype, and its inputs."""
    model, inputs = model_of(name)
    floats = {n: v.to(dtype) for n, v in inputs.items() if torch.is_tensor(v) and v.is_floating_point()}
    return copy.deepcopy(model).to(dtype), {**inputs, **floats}


@pytest.mark.parametrize("name", CLASSES)
def test_a_gradient_that_is_off_in_half_precision_is_caught(name: str) -> None:
    planter = Planter()
    model, inputs = in_dtype(name, DTYPES[1 + CLASSES.index(name) % 2])
    examination = Examination(model, inputs, levels=["set", "values"], switch=planter)
    planter.kind = planted.Scaled
    for mode in MODES:
        assert examination.examine(mode).outcome("values") == "failed"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CLASSES)
def test_a_sound_model_is_not_blamed_in_any_dtype_plain_with_any_seed_or_wrapped(
    name: str, dtype: torch.dtype
) -> None:
    model, inputs = in_dtype(name, dtype)
    for seed in range(3):
        report = verify(model, inputs, levels=["set", "values"], seed=seed)
        assert report.ok, str(report)
    wrap_blocks(model)
    report = verify(model, inputs, levels=["set", "values"], seed=DTYPES.index(dtype))
    assert report.ok, str(report)
