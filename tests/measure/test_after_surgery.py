"""A model examined again after `wrap_blocks`: its reference, refusals, and the causes of remaining faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction

from ckpt_surgery.errors import SurgeryError, VerifyError
from ckpt_surgery.measure import verify as verify_module
from ckpt_surgery.measure.kinds import CauseKind, FaultKind, SkipKind
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import MODES, QUICK_LEVELS, SURGERY_MODE, Fault, FaultCause, Mode, ModeReport
from ckpt_surgery.measure.verify import Examination, verify
from ckpt_surgery.runtime.surgery.wrap import wrap_blocks
from tests.measure.toys import (
    WIDTH,
    CountingLayer,
    Layer,
    Model,
    NormLayer,
    PairLayer,
    PairsInTurn,
    PlainLayer,
    ResidualByKeyword,
    RouterLoss,
    RoutingLayer,
    Stage,
    TwoStreamLayer,
    model_of,
    values,
)
from tests.zoo import planted
from tests.zoo.planted import switch_with

pytestmark = [pytest.mark.both, pytest.mark.torch]


class RefusingLayer(CountingLayer):
    """A layer whose second run refuses as a surgery does where a recompute would be wrong."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        if self.runs:
            raise SurgeryError("it is\n written to. Leave it out.")
        return super().forward(hidden_states)


class OtherWithoutCache(Model):
    """A model that computes something else without a cache, and drops it while it checkpoints."""

    def forward(self, values: Tensor, use_cache: bool = True) -> Any:
        if self.training and any(getattr(module, "gradient_checkpointing", False) for module in self.modules()):
            use_cache = False
        return self.last(self.run_layers(self.first(values) * (2 if use_cache else 1)))


class SameWithoutCache(Model):
    def forward(self, values: Tensor, use_cache: bool = True) -> Any:
        return super().forward(values)


class Unclaimed(Model):
    supports_gradient_checkpointing = False


class FirstInATuple(nn.Linear):
    """Embeddings that return a tuple, which breaks transformers' method to switch checkpointing on."""

    def forward(self, values: Tensor) -> Any:
        return (super().forward(values),)


class TupleOfEmbeddings(Unclaimed):
    main_input_name = "input_ids"

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.embeddings = FirstInATuple(WIDTH, WIDTH)

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def forward(self, values: Tensor) -> Any:
        return self.last(self.run_layers(self.embeddings(values)[0]))


_OWN = torch.Generator().manual_seed(0)


class UnclaimedMoody(Unclaimed):
    """A model that draws from a generator it does not hold."""

    def forward(self, values: Tensor) -> Any:
        return super().forward(values * torch.rand((), generator=_OWN, dtype=torch.float64))


def both_sides(model: Model) -> tuple[dict[Mode, ModeReport], dict[Mode, ModeReport]]:
    """Return the modes of a model as it is, and those after the surgery."""
    look = Examination(model, values())
    assert not look.reference().problem
    before = {mode: look.examine(mode) for mode in MODES}
    then, _ = look.repaired()
    return before, {SURGERY_MODE: then.examine(SURGERY_MODE)}


def faults(modes: dict[Mode, ModeReport]) -> list[Fault]:
    return [fault for mode in modes.values() for fault in mode.faults]


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: model_of(PlainLayer, PlainLayer, PlainLayer), id="plain blocks"),
        pytest.param(lambda: model_of(Layer, Layer, by_keyword=True), id="a hidden state by keyword"),
        pytest.param(lambda: model_of(TwoStreamLayer, TwoStreamLayer, whole=ResidualByKeyword), id="a second stream"),
        pytest.param(lambda: model_of(PairLayer, PairLayer, whole=PairsInTurn), id="a nested output"),
        pytest.param(lambda: model_of(RoutingLayer, RoutingLayer, whole=RouterLoss), id="tensors left aside"),
        pytest.param(lambda: model_of(NormLayer, NormLayer), id="running statistics"),
        pytest.param(lambda: model_of(Stage, Stage), id="layers in layers"),
    ],
)
def test_what_is_broken_is_ok_after_it(build: Callable[[], Model]) -> None:
    before, after = both_sides(build())
    assert faults(before)
    assert not faults(after), faults(after)
    assert all(mode.ok for mode in after.values())


def test_a_surgery_that_changes_the_result_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def botched(model: nn.Module) -> Any:
        surgery = wrap_blocks(model)
        with torch.no_grad():
            model.get_parameter("first.weight").mul_(2)
        return surgery

    monkeypatch.setattr(verify_module, "wrap_blocks", botched)
    _, after = both_sides(model_of(Layer, Layer))
    assert faults(after)


@pytest.mark.parametrize(("whole", "claims"), [(Unclaimed, True), (TupleOfEmbeddings, False)])
def test_a_model_that_claimed_no_support_has_a_separate_run(whole: type[Model], claims: bool) -> None:
    model = model_of(PlainLayer, PlainLayer, PlainLayer, whole=whole)
    look = Examination(model, values())
    assert look.reference().problem
    then, table = look.repaired()
    assert then.reference().supported
    assert model.supports_gradient_checkpointing is claims
    run = then.examine(SURGERY_MODE)
    assert run.ok
    assert "3 of 3 blocks checkpointed" in table
    assert [block.name for block in run.blocks] == ["layers.0", "layers.1", "layers.2"]


def test_a_separate_run_that_differs_each_time_counts_as_none() -> None:
    look = Examination(model_of(PlainLayer, PlainLayer, PlainLayer, whole=UnclaimedMoody), values())
    assert look.reference().problem
    with pytest.raises(VerifyError, match=r"^two runs of UnclaimedMoody without checkpointing differ: nothing can be"):
        look.repaired()


def test_a_model_that_fails_without_checkpointing_has_no_reference() -> None:
    look = Examination(model_of(Layer, Layer), {"values": torch.ones(1, 1)})
    with pytest.raises(VerifyError, match="the run of Model without checkpointing failed"):
        look.repaired()


def test_a_call_that_a_surgery_refuses_is_no_fault_and_not_ok() -> None:
    report = verify(model_of(RefusingLayer, RefusingLayer), values(), modes=SURGERY_MODE)
    (refused,) = report.modes
    assert (refused.faults, refused.status, refused.ok) == ((), "refused", False)
    assert refused.refused == "it is written to. Leave it out."
    assert set(refused.outcomes.values()) == {"skipped"}
    assert (report.status, report.faults) == ("failed", ())
    assert "Refused" in str(report)


@pytest.mark.parametrize("options", [{}, {"save": ["matmul"]}, {"every_n": 2}, {"use_reentrant": False}], ids=str)
def test_a_wrapped_model_is_measured_as_it_runs_and_once(options: dict[str, Any]) -> None:
    model = model_of(Layer, Layer, Layer)
    wrap_blocks(model, **options)
    report = verify(model, values(), levels=QUICK_LEVELS)
    runs, other = report.modes
    assert (report.status, runs.status, other.status) == ("ok", "ok", "skipped")
    assert set(other.outcomes.values()) == {"skipped"}
    assert [(skip.levels, skip.kind) for skip in other.skips] == [(("run",), SkipKind.ALWAYS_NON_REENTRANT)]
    assert [kept.name for kept in runs.kept_results] == options.get("save", [])
    assert sum(block.backward for block in runs.blocks) == (2 if "every_n" in options else 3)
    assert "reentrant, run: wrap_blocks checkpoints non-reentrant in either mode" in str(report)


def test_a_wrapped_model_that_is_wrong_fails_in_the_mode_that_runs_alone() -> None:
    model = model_of(Layer, Layer, whole=OtherWithoutCache)
    wrap_blocks(model)
    report = verify(model, values())
    assert [run.status for run in report.modes] == ["failed", "skipped"]
    assert {mode for mode, _ in report.faults} == {SURGERY_MODE}


def test_a_report_in_which_nothing_was_measured_is_neither_ok_nor_failed() -> None:
    model = model_of(Layer, Layer)
    wrap_blocks(model)
    report = verify(model, values(), modes="reentrant")
    assert (report.status, report.ok, report.faults, report.modes[0].wrong) == ("skipped", False, (), False)
    assert Report.from_dict(json.loads(report.to_json())) == report
    assert not report.stays_broken


def test_verify_after_save_measures_one_mode_and_no_reentrant_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def reentrant(*_: object) -> None:
        raise AssertionError("torch's reentrant checkpointing ran")

    class Enc(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in "abcd")

        def forward(self, hidden: Tensor) -> Tensor:
            for block in self.blocks:
                hidden = hidden + block(hidden)
            return hidden

    monkeypatch.setattr(CheckpointFunction, "apply", reentrant)
    model = Enc()
    wrap_blocks(model, save=["matmul:2"])
    report = verify(model, torch.randn(2, 16, 32))
    assert report.ok, str(report)
    assert {run.mode: run.status for run in report.modes} == {"non_reentrant": "ok", "reentrant": "skipped"}


def test_gradients_equal_to_a_run_without_cache_are_explained_by_it() -> None:
    before, after = both_sides(model_of(Layer, Layer, whole=OtherWithoutCache))
    for modes in (before, after):
        mode_faults = faults(modes)
        assert {fault.level for fault in mode_faults} == {"values"}
        assert {fault.explanation for fault in mode_faults} == {FaultCause(CauseKind.CACHE_SWITCHED_OFF)}


def test_gradients_wrong_without_cache_too_are_not_explained_by_it() -> None:
    model, inputs = model_of(Layer, Layer, whole=SameWithoutCache).float(), {"values": values()["values"].float()}
    report = verify(model, inputs, levels=["values"], switch=switch_with(planted.Scaled))
    assert {(fault.kind, fault.explanation) for _, fault in report.faults} == {(FaultKind.GRADIENT_VALUE, None)}
