"""Every fault planted into a model's checkpointing is caught at its level; healthy models have none."""

from __future__ import annotations

import copy
import gc
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from packaging.version import Version
from torch import nn

from ckpt_surgery.measure.kinds import FaultKind, LoopKind, Precision
from ckpt_surgery.measure.results import MODES, QUICK_LEVELS, Level, Mode, ModeReport
from ckpt_surgery.measure.verify import Examination, verify
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks
from ckpt_surgery.tiny import tiny_model
from tests.zoo import planted
from tests.zoo.any_order import AnyOrder
from tests.zoo.planted import switch_with

pytestmark = pytest.mark.torch

CLASSES = (
    "LlamaForCausalLM",
    "BertForMaskedLM",
    "MixtralForCausalLM",
    "T5ForConditionalGeneration",
    "ViTForImageClassification",
)
WITH_MASK = tuple(name for name in CLASSES if name != "ViTForImageClassification")
WITH_CACHE = (  # the others give their blocks no cache while they train
    "LlamaForCausalLM",
    "MixtralForCausalLM",
    "T5ForConditionalGeneration",
)
WITH_OTHER_MASK = ("LlamaForCausalLM", "BertForMaskedLM")
"""Classes that get their mask by name, and by position."""
OPTIONS = {"T5ForConditionalGeneration": {"num_layers": 1, "num_decoder_layers": 2}}

FAULTS: Mapping[type[planted.Fault], tuple[Level, set[str], tuple[str, ...]]] = {
    planted.MaskDropped: ("values", {FaultKind.GRADIENT_VALUE}, WITH_MASK),
    planted.OtherDropout: ("values", {FaultKind.GRADIENT_VALUE}, CLASSES),
    planted.Scaled: ("values", {FaultKind.GRADIENT_VALUE}, CLASSES),
    planted.SmallSignsFlipped: ("values", {FaultKind.GRADIENT_VALUE}, CLASSES),
    planted.StaleWeights: ("loop", {LoopKind.STEPS}, CLASSES),
    planted.GradientOverwritten: ("loop", {LoopKind.ACCUMULATION, LoopKind.TWO_FORWARDS}, CLASSES),
    planted.LatestArguments: ("loop", {LoopKind.TWO_FORWARDS}, CLASSES),
    planted.FirstMask: ("loop", {LoopKind.STEPS, LoopKind.TWO_FORWARDS, LoopKind.RETAINED_GRAPH}, WITH_OTHER_MASK),
    planted.LatestMask: ("loop", {LoopKind.TWO_FORWARDS}, WITH_OTHER_MASK),
    planted.SecondBackward: ("loop", {LoopKind.RETAINED_GRAPH}, CLASSES),
    planted.FrozenBase: ("loop", {LoopKind.ADAPTERS}, CLASSES),
    planted.RecomputedHeld: ("loop", {FaultKind.LEFT_BYTES, FaultKind.RECOMPUTED_BYTES}, CLASSES),
    planted.RecomputedHeldToTheEnd: ("loop", {FaultKind.RECOMPUTED_BYTES}, CLASSES),
    planted.Growing: ("loop", {FaultKind.GROWING_BYTES}, CLASSES),
    planted.AutocastDropped: ("precision", {Precision.AUTOCAST}, CLASSES),
    planted.InBfloat16: ("precision", {Precision.BFLOAT16}, CLASSES),
    planted.InFloat16: ("precision", {Precision.FLOAT16}, CLASSES),
    planted.ActivationsHeld: ("cost", {FaultKind.KEPT_BYTES}, CLASSES),
    planted.CacheWrittenAgain: ("state", {FaultKind.CACHE_STEP_RAISED, FaultKind.CACHE_WRITTEN}, WITH_CACHE),
    planted.CacheWrittenInBackward: ("state", {FaultKind.CACHE_WRITTEN}, WITH_CACHE),
}
"""Each fault with its level, the names under which it shows, and the classes where it can be planted."""


class Planter:
    """A switch that plants the fault named by its `kind`."""

    def __init__(self) -> None:
        self.kind: type[planted.Fault] = planted.Fault
        self._switch = switch_with(lambda block, checkpoint: self.kind(block, checkpoint))

    def __call__(self, model: nn.Module, mode: Mode | None) -> None:
        self._switch(model, mode)


@pytest.fixture(scope="module", autouse=True)
def _what_is_imported_is_not_collected() -> None:
    """Freeze what models import: collecting it takes longer than a step, and garbage after a step is collected."""
    for name in CLASSES:
        getattr(transformers, name)
    gc.collect()
    gc.freeze()


@cache
def model_of(name: str) -> tuple[Any, Mapping[str, Any]]:
    """Build a model once for all tests: `verify` leaves it as it was."""
    tiny = tiny_model(getattr(transformers, name), options=OPTIONS.get(name))
    return tiny.model.train(), tiny.inputs


@cache
def examination_of(name: str, level: Level) -> tuple[Examination, Planter]:
    """Examine a class at one level; all faults share its reference."""
    planter = Planter()
    model, inputs = model_of(name)
    return Examination(model, inputs, levels=[level], switch=planter), planter


def cases() -> list[Any]:
    """List each fault in each class, alternating between the modes."""
    named = [(fault, name) for fault, (_, _, names) in FAULTS.items() for name in names]
    return [
        pytest.param(fault, name, MODES[place % 2], id=f"{fault.__name__}, {name}, {MODES[place % 2]}")
        for place, (fault, name) in enumerate(named)
    ]


def names_in(run: ModeReport) -> set[str]:
    """Return the names of faults: the loop's or the precision's own, or else the kind."""
    names = (fault.details.get(fault.level, fault.kind) for fault in run.faults)
    return {Precision.AUTOCAST if name == FaultKind.AUTOCAST_NOT_RESTORED else str(name) for name in names}


@pytest.mark.parametrize(("fault", "name", "mode"), cases())
def test_a_planted_fault_is_caught_by_its_level_alone_and_by_name(
    fault: type[planted.Fault], name: str, mode: Mode
) -> None:
    if fault is planted.CacheWrittenInBackward and Version(transformers.__version__) < Version("5.22"):
        pytest.skip("the layers of this release checkpoint their call, so that their hooks see no cache to write")
    level, names, _ = FAULTS[fault]
    examination, planter = examination_of(name, level)
    planter.kind = fault
    run = examination.examine(mode)
    planter.kind = planted.Fault
    assert run.outcome(level) == "failed", str(run)
    assert names_in(run) <= names, str(run)


@pytest.mark.parametrize("name", CLASSES)
def test_no_fault_is_seen_where_none_is_planted(name: str) -> None:
    model, inputs = model_of(name)
    report = verify(model, inputs, levels=QUICK_LEVELS, switch=switch_with(planted.Fault))
    assert report.ok, str(report)


def in_dtype(name: str, dtype: torch.dtype) -> tuple[Any, Mapping[str, Any]]:
    """Copy the model and its inputs to a dtype."""
    model, inputs = model_of(name)
    floats = {n: v.to(dtype) for n, v in inputs.items() if torch.is_tensor(v) and v.is_floating_point()}
    return copy.deepcopy(model).to(dtype), {**inputs, **floats}


def test_kernels_that_add_up_in_any_order_are_no_fault() -> None:
    model, inputs = model_of("T5ForConditionalGeneration")
    with AnyOrder():
        report = verify(model, inputs, modes=MODES[0], levels=["set", "values", "precision"])
        faulty = verify(model, inputs, modes=MODES[0], levels=["values"], switch=switch_with(planted.MaskDropped))
    assert report.modes[0].outcome("precision") == "ok", str(report)
    assert report.ok, str(report)
    assert faulty.modes[0].outcome("values") == "failed", str(faulty)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CLASSES)
def test_a_half_dtype_clears_what_is_sound_and_catches_what_is_off(name: str, dtype: torch.dtype) -> None:
    model, inputs = in_dtype(name, dtype)
    planter = Planter()
    sound, other_seed = (
        Examination(model, inputs, levels=["set", "values"], seed=seed, switch=planter) for seed in (0, 1)
    )
    planter.kind = planted.Scaled
    assert sound.examine(MODES[CLASSES.index(name) % 2]).outcome("values") == "failed"
    planter.kind = planted.Fault
    for examination in (sound, other_seed):
        report = examination.run()
        assert report.ok, str(report)
    wrap_blocks(model)
    report = verify(model, inputs, levels=["set", "values"])
    assert report.ok, str(report)
