"""Each planted fault is the verdict of `verify` in the modes that show it, and nothing else is."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from torch import Tensor, nn

from ckpt_surgery.errors import VerifyError
from ckpt_surgery.measure.compare import compare
from ckpt_surgery.measure.report import ModelFacts, Report
from ckpt_surgery.measure.results import LEVELS, MODES, Fault, Level, Mode
from ckpt_surgery.measure.step import run_step
from ckpt_surgery.measure.switch import switch_checkpointing
from ckpt_surgery.measure.verify import verify
from tests.measure.toys import (
    WIDTH,
    CachingLayer,
    CountingLayer,
    FailingLayer,
    ForgettingLayer,
    HoardingLayer,
    KeywordCache,
    Layer,
    Model,
    NoProjection,
    NormLayer,
    PairLayer,
    PairsInTurn,
    PlainLayer,
    PositionalCache,
    ResidualByKeyword,
    ResidualInAList,
    RouterLoss,
    RoutingLayer,
    SharedDictionary,
    Slipping,
    Stage,
    SureLayer,
    TwoStreamLayer,
    WritingLayer,
    changed,
    model_of,
    snapshot,
    values,
)

pytestmark = [pytest.mark.both, pytest.mark.torch]

Seen = tuple[str, str, str]
"""A fault in the tables below: its level, its rule, and a word of its cause."""

LAYERS = ("layers.0", "layers.1")


def seen(report: Report) -> dict[Mode, list[Fault]]:
    return {mode.mode: list(mode.faults) for mode in report.modes}


def assert_faults(report: Report, expected: Mapping[Mode, Sequence[Seen]]) -> None:
    """Assert exactly these faults in each mode, and matching outcomes."""
    for mode in report.modes:
        wanted = expected.get(mode.mode, ())
        assert [(f.level, f.rule) for f in mode.faults] == [(level, rule) for level, rule, _ in wanted], str(report)
        for fault, (_, _, word) in zip(mode.faults, wanted, strict=True):
            assert word in fault.cause if word else not fault.cause
        failed = {level for level, outcome in mode.outcomes.items() if outcome == "failed"}
        assert failed == {level for level, _, _ in wanted}
        assert mode.ok is not bool(wanted)
    assert {mode.mode for mode in report.modes} == set(MODES)
    assert report.ok is not any(expected.values())


def in_both(*faults: Seen) -> dict[Mode, Sequence[Seen]]:
    return dict.fromkeys(MODES, faults)


def reentrant(*faults: Seen) -> dict[Mode, Sequence[Seen]]:
    return {"reentrant": faults}


HEALTHY = [
    pytest.param(lambda: model_of(Layer, Layer), id="blocks with dropout"),
    pytest.param(lambda: model_of(SureLayer, SureLayer, SureLayer), id="blocks without randomness"),
    pytest.param(lambda: model_of(SureLayer, SureLayer, whole=Slipping), id="no restored generator that nobody uses"),
    pytest.param(lambda: model_of(CachingLayer, CachingLayer, whole=KeywordCache), id="a cache by keyword"),
]


@pytest.mark.parametrize("build", HEALTHY)
def test_a_healthy_model_passes_in_both_modes_bit_by_bit(build: Callable[[], Model]) -> None:
    report = verify(build(), values())
    assert_faults(report, {})
    assert report.status == "ok"
    for mode in report.modes:
        assert set(mode.errors.values()) == {0.0}
        assert [(block.forward, block.backward) for block in mode.blocks] == [(1, 1)] * len(mode.blocks)
        assert mode.blocks
        assert {level for level, outcome in mode.outcomes.items() if outcome == "skipped"} == {"ranks"}


LEAK: Seen = ("loop", "", "")
"""The fault of a recompute whose results are alive after the backward."""

FAULTS = [
    pytest.param(
        lambda: model_of(Layer, Layer, by_keyword=True),
        reentrant(("recompute", "CKPT003", "`hidden_states`"), ("set", "CKPT003", "by keyword")),
        id="a hidden state by keyword",
    ),
    pytest.param(
        lambda: model_of(TwoStreamLayer, TwoStreamLayer, whole=ResidualByKeyword),
        reentrant(("run", "CKPT003", "`residual`")),
        id="a second stream by keyword",
    ),
    pytest.param(
        lambda: model_of(TwoStreamLayer, TwoStreamLayer, whole=ResidualInAList),
        reentrant(("run", "CKPT007", "`residual`")),
        id="a gradient tensor inside a list",
    ),
    pytest.param(
        lambda: model_of(PairLayer, PairLayer, whole=PairsInTurn),
        reentrant(("values", "CKPT010", "inner container")),
        id="a gradient tensor inside a nested output",
    ),
    pytest.param(
        lambda: model_of(WritingLayer, WritingLayer, whole=SharedDictionary),
        {
            "non_reentrant": [("values", "CKPT007", "writes"), ("loop", "CKPT007", "writes")],
            "reentrant": [("run", "CKPT007", "`shared_states`")],
        },
        id="a dictionary that blocks write into",
    ),
    pytest.param(
        lambda: model_of(RoutingLayer, RoutingLayer, whole=RouterLoss),
        {"non_reentrant": [LEAK], "reentrant": [("values", "", "router logits"), LEAK]},
        id="router scores left aside",
    ),
    pytest.param(
        lambda: model_of(SureLayer, SureLayer, whole=NoProjection),
        reentrant(("recompute", "", "No input of SureLayer"), ("set", "", "needs gradient")),
        id="a first block whose input needs no gradient",
    ),
    pytest.param(
        lambda: model_of(Layer, ForgettingLayer),
        reentrant(("set", "", "`layers.1.runs`")),
        id="a gradient dropped in the recompute",
    ),
    pytest.param(
        lambda: model_of(Layer, CountingLayer), in_both(("values", "", "`layers.1.runs`")), id="a value that drifts"
    ),
    pytest.param(lambda: model_of(Layer, FailingLayer), in_both(("run", "", "")), id="a crash in the backward"),
    pytest.param(
        lambda: model_of(NormLayer, Layer), in_both(("state", "", "batch normalisation")), id="batch normalisation"
    ),
    pytest.param(
        lambda: model_of(Layer, SureLayer, Layer, whole=Slipping),
        in_both(*[(level, "", "generator") for level in ("values", "state", "state")]),
        id="a generator that is not restored",
    ),
    pytest.param(
        lambda: model_of(PlainLayer, PlainLayer),
        in_both(
            ("recompute", "CKPT001", "not a GradientCheckpointingLayer"),
            ("cost", "CKPT001", "not a GradientCheckpointingLayer"),
        ),
        id="plain blocks",
    ),
    pytest.param(
        lambda: model_of(Stage, Stage),
        in_both(("recompute", "CKPT006", "Stage"), ("cost", "CKPT006", "Stage")),
        id="a layer inside a layer",
    ),
    pytest.param(
        lambda: model_of(HoardingLayer, Layer),
        {"non_reentrant": [("cost", "", "")], "reentrant": [("cost", "", ""), LEAK]},
        id="tensors that blocks keep",
    ),
    pytest.param(model_of, in_both(("recompute", "CKPT009", "")), id="no block at all"),
]


@pytest.mark.parametrize(("build", "expected"), FAULTS)
def test_a_planted_fault_is_the_verdict(build: Callable[[], Model], expected: dict[Mode, Sequence[Seen]]) -> None:
    assert_faults(verify(build(), values()), expected)


def one(report: Report, mode: Mode, level: Level) -> Fault:
    return next(fault for fault in seen(report)[mode] if fault.level == level)


def test_the_lost_gradients_are_named_in_the_models_order() -> None:
    report = verify(model_of(Layer, Layer, by_keyword=True), values())
    before = ("first", "layers.0.linear", "layers.1.linear")
    expected = tuple(f"{module}.{name}" for module in before for name in ("weight", "bias"))
    fault = one(report, "reentrant", "set")
    assert fault.subjects == expected
    assert "6 of 8" in fault.seen
    assert one(report, "reentrant", "recompute").subjects == LAYERS
    dropped = verify(model_of(Layer, ForgettingLayer), values(), modes=["reentrant"])
    assert one(dropped, "reentrant", "set").subjects == ("layers.1.shift",)


def test_the_worst_of_the_wrong_values_is_named_first_with_its_error() -> None:
    report = verify(model_of(Layer, CountingLayer), values(), modes=["non_reentrant"])
    fault = one(report, "non_reentrant", "values")
    errors = report.modes[0].errors
    assert errors[fault.subjects[0]] == max(errors.values()) > 0.1
    assert "last.weight" not in fault.subjects
    assert f"{max(errors.values()):.2g}" in fault.seen


def test_only_the_plain_blocks_are_named_where_others_are_layers() -> None:
    report = verify(Halves(), values(), levels=["recompute"])
    for mode in MODES:
        fault = one(report, mode, "recompute")
        assert (fault.seen, fault.subjects, fault.rule) == ("none", tuple(f"others.{i}" for i in range(6)), "CKPT001")


class Halves(Model):
    """A healthy stack and a plain one."""

    def __init__(self) -> None:
        super().__init__(SureLayer(), SureLayer())
        self.others = nn.ModuleList(PlainLayer() for _ in range(6))
        self.double().train()

    def run_layers(self, hidden_states: Tensor) -> Tensor:
        hidden_states = super().run_layers(hidden_states)
        for layer in self.others:
            hidden_states = layer(hidden_states)
        return hidden_states


def test_the_inner_layer_is_named_with_its_entries() -> None:
    report = verify(model_of(Stage, Layer), values())
    for mode in MODES:
        fault = one(report, mode, "recompute")
        assert fault.subjects == ("layers.0.inner",)
        assert fault.seen.startswith("3 (1 in the forward, 2 in the backward)")
        counts = {b.name: (b.kind, b.reference, b.forward, b.backward) for r in report.modes for b in r.blocks}
        assert counts["layers.0.inner"] == ("layer", 1, 1, 2)
        assert counts["layers.0"] == counts["layers.1"] == ("layer", 1, 1, 1)


def test_a_block_called_twice_in_the_forward_may_run_twice_in_the_backward() -> None:
    layer = SureLayer()
    report = verify(Twice(layer).double().train(), values())
    assert_faults(report, {})
    assert [(b.reference, b.forward, b.backward) for b in report.modes[0].blocks] == [(2, 2, 2)]


class Twice(Model):
    def run_layers(self, hidden_states: Tensor) -> Tensor:
        return super().run_layers(super().run_layers(hidden_states))


def test_a_mode_that_crashes_says_where_and_has_no_other_outcome() -> None:
    for mode in verify(model_of(FailingLayer), values()).modes:
        assert "backward raised RuntimeError: the cache is full" in mode.faults[0].seen
        assert mode.outcomes == {level: "failed" if level == "run" else "skipped" for level in LEVELS}
        assert mode.cost is None


@pytest.mark.parametrize(
    ("kinds", "rule", "word"), [((PlainLayer, PlainLayer), "CKPT001", "PlainLayer"), ((), "CKPT009", "")]
)
def test_a_model_that_cannot_be_switched_on_is_at_fault_in_every_mode(
    kinds: tuple[type[nn.Module], ...], rule: str, word: str
) -> None:
    model = model_of(*kinds)
    del model.gradient_checkpointing  # the release's own method then finds nothing that it could switch on
    report = verify(model, values())
    assert_faults(report, in_both(("run", rule, word)))
    for faults in seen(report).values():
        assert "switched on" in faults[0].expected
        assert "ValueError" in faults[0].seen
        assert "\n" not in faults[0].seen


@pytest.mark.parametrize("layer", [Layer, FailingLayer])
def test_a_model_with_layers_that_claims_no_support_is_run_as_if_it_did(layer: type[Layer]) -> None:
    model = model_of(layer)
    model.supports_gradient_checkpointing = False
    report = verify(model, values())
    assert (report.supported, report.status, report.ok, report.problem) == (False, "unsupported", False, "")
    assert [mode.ok for mode in report.modes] == [layer is Layer] * 2
    assert vars(model)["supports_gradient_checkpointing"] is False


def test_a_model_without_layers_or_claimed_support_is_unsupported_not_run() -> None:
    model = model_of(PlainLayer)
    model.supports_gradient_checkpointing = False
    report = verify(model, {"unknown": 1})
    assert (report.supported, report.status, report.modes, report.ok) == (False, "unsupported", (), False)
    assert "does not support" in report.problem


def cached(model: Model, offered: bool) -> Report:
    given = {} if offered else {"past_key_values": transformers.DynamicCache()}
    return verify(model, {**values(), **given})


@pytest.mark.parametrize("offered", [False, True], ids=["given in the inputs", "offered by verify"])
def test_a_cache_by_position_grows_twice(offered: bool) -> None:
    report = cached(model_of(CachingLayer, CachingLayer, whole=PositionalCache), offered)
    for mode in MODES:
        fault = one(report, mode, "state")
        assert (fault.subjects, fault.rule) == (("input past_key_values",), "CKPT004")
        assert fault.expected.startswith("size 2 ")
        assert fault.seen.startswith("4 ")
        assert "by position" in fault.cause


@pytest.mark.parametrize("offered", [False, True], ids=["given in the inputs", "offered by verify"])
def test_a_cache_by_keyword_is_left_alone(offered: bool) -> None:
    assert_faults(cached(model_of(CachingLayer, CachingLayer, whole=KeywordCache), offered), {})


def test_no_cache_is_offered_where_the_state_is_not_asked_for() -> None:
    model = model_of(CachingLayer, CachingLayer, whole=PositionalCache)
    runs: list[Any] = []
    model.first.register_forward_hook(lambda *_: runs.append(None))
    levels: list[Level] = ["recompute", "set", "values", "cost"]
    assert_faults(verify(model, values(), levels=levels), {})
    assert len(runs) == 3  # the reference and each mode


@pytest.mark.parametrize("level", ["recompute", "cost"])
def test_only_the_levels_asked_for_are_judged_besides_a_run_that_breaks(level: Level) -> None:
    report = verify(model_of(PlainLayer, PlainLayer), values(), levels=[level])
    for mode in report.modes:
        assert [fault.level for fault in mode.faults] == [level]
        assert {name for name, outcome in mode.outcomes.items() if outcome != "skipped"} == {"run", level}
    broken = verify(model_of(FailingLayer), values(), levels=[level])
    assert_faults(broken, in_both(("run", "", "")))


def test_only_the_modes_asked_for_are_run_and_in_that_order() -> None:
    model = model_of(Layer, Layer, by_keyword=True)
    assert verify(model, values(), modes=["non_reentrant"]).ok
    assert [m.mode for m in verify(model, values(), modes=["reentrant", "non_reentrant"]).modes] == [*reversed(MODES)]


def test_a_tolerance_decides_what_is_wrong() -> None:
    model = model_of(Layer, CountingLayer)
    assert verify(model, values(), tolerance=10.0, levels=["values"]).ok
    assert not verify(model, values(), levels=["values"]).ok


@pytest.mark.parametrize("mode", MODES)
def test_rounding_flips_no_verdict(mode: Mode) -> None:
    model = model_of(Rounding, Rounding).float()
    inputs = {"values": values()["values"].float()}
    reference, checkpointed = (run_step(model, inputs, blocks={}, checkpointing=run) for run in (None, mode))
    strict = compare(reference, checkpointed, floors={}).errors or {}
    assert {name for name, error in strict.items() if error > 1e-3} & {"layers.0.key.bias", "layers.1.key.bias"}
    assert 0 < strict["layers.0.value.weight"] < 1e-5
    report = verify(model, inputs, modes=[mode])
    assert report.ok, str(report)


class Rounding(Layer):
    """Attention whose recompute is off by the last bit of its input.

    The gradient of its keys' bias is zero in theory: it adds the same to all scores of a query.
    """

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.runs = 0

    def forward(self, hidden_states: Tensor) -> Tensor:
        self.runs += 1
        given = hidden_states * (1 + torch.finfo(torch.float32).eps * (self.runs > 1))
        scores = self.query(given) @ self.key(given).T
        mixed: Tensor = torch.softmax(scores, dim=-1) @ self.value(given)
        return hidden_states + mixed


def test_a_loss_of_the_callers_is_used() -> None:
    losses = []

    def loss(output: Any) -> Tensor:
        losses.append(float((2 * output.sum()).detach()))
        result: Tensor = 2 * output.sum()
        return result

    assert verify(model_of(Layer, Layer), values(), loss=loss, levels=["set", "values"]).ok
    assert len(losses) == 3  # the reference and each mode, and no run besides
    assert len(set(losses)) == 1


def test_a_gate_that_is_closed_hides_no_lost_gradient() -> None:
    model = model_of(Gated, Gated, by_keyword=True)
    report = verify(model, values(), modes=["reentrant"])
    lost = one(report, "reentrant", "set").subjects
    assert "layers.1.linear.weight" in lost
    assert not any(
        bool(layer.get_parameter("gate").any()) for layer in model.layers
    )  # it was opened for the step only


class Gated(SureLayer):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states + self.gate * super().forward(hidden_states)


def test_the_report_says_what_was_examined() -> None:
    report = verify(model_of(Layer, Layer), values(), modes=["non_reentrant"])
    assert (report.model, report.facts) == ("Model", ModelFacts("float64", 4 * (WIDTH * WIDTH + WIDTH)))
    assert report.versions["torch"] == importlib.metadata.version("torch")  # `__version__` may name a build
    assert report.versions["transformers"] == transformers.__version__
    assert set(report.seconds) == {"reference", "non_reentrant"}
    assert report.reference is not None
    (mode,) = report.modes
    assert mode.timeline is not None
    assert max(held for _, held in mode.timeline.points) < max(held for _, held in report.reference.points)


# What gets no verdict


class Broken(Model):
    def forward(self, values: Tensor) -> Any:
        raise KeyError("never")


class Silent(Model):
    def forward(self, values: Tensor) -> Any:
        return super().forward(values).detach()


def poisoned(where: str) -> Model:
    """Make the loss NaN, or only its gradient: the derivative of a root at zero is not finite."""
    model = model_of(Layer)
    factor = float("nan") if where == "loss" else 0.0
    model.register_forward_hook(lambda module, arguments, output: torch.sqrt(output * output * factor).sum())
    return model


def frozen() -> Model:
    model = model_of(Layer)
    model.requires_grad_(False)
    return model


def spoilt() -> Model:
    model = model_of(Layer, Layer)
    with torch.no_grad():
        model.first.weight.fill_(float("nan"))
    return model


REFUSED = [
    pytest.param(lambda: "Model", {}, "torch.nn.Module", id="no module"),
    pytest.param(lambda: model_of(Layer).eval(), {}, r"evaluation mode.*model\.train\(\)", id="evaluation mode"),
    pytest.param(lambda: model_of(Layer).to("meta"), {}, "meta device.*to_empty", id="on meta"),
    pytest.param(lambda: nn.Sequential(nn.LazyLinear(2)), {}, "without a shape: run one forward first", id="lazy"),
    pytest.param(frozen, {}, "no parameter of Model requires gradient", id="nothing to train"),
    pytest.param(
        lambda: nn.Linear(2, 2),
        {},
        "Linear has no method .*: call wrap_blocks on it first, or give a function",
        id="no method",
    ),
    pytest.param(lambda: model_of(Layer), {"inputs": 1}, "int: give a dictionary", id="inputs no mapping"),
    pytest.param(lambda: model_of(Layer), {"inputs": {"nothing": 1}}, "check model and inputs", id="unknown input"),
    pytest.param(
        lambda: model_of(Layer),
        {"inputs": {"values": torch.zeros(1, WIDTH + 1, dtype=torch.float64)}},
        "check model and inputs",
        id="inputs that do not fit",
    ),
    pytest.param(lambda: model_of(Layer, whole=Broken), {}, "failed: forward raised KeyError", id="a broken forward"),
    pytest.param(lambda: model_of(Layer, whole=Silent), {}, "no float tensor that requires gradient", id="no loss"),
    pytest.param(
        lambda: model_of(Layer),
        {"loss": lambda y: y.sum().detach()},
        "the loss needs no gradient.*check the loss function",
        id="a loss cut off",
    ),
    pytest.param(lambda: model_of(Layer), {"loss": lambda y: 1.0}, "the loss is of type float.*check", id="a number"),
    pytest.param(lambda: model_of(Layer), {"loss": lambda y: y}, "the shape .*one element", id="many losses"),
    pytest.param(lambda: nn.DataParallel(model_of(Layer)), {}, "give model.module", id="copies"),
    pytest.param(lambda: model_of(Layer), {"levels": []}, "no level to verify: give some of", id="no level"),
    pytest.param(lambda: model_of(Layer), {"tolerance": -1}, "the tolerance is -1: give", id="a negative tolerance"),
    pytest.param(lambda: model_of(Layer), {"tolerance": "x"}, "the tolerance is 'x': give", id="no tolerance"),
    pytest.param(spoilt, {}, "the run of Model without checkpointing the loss is nan", id="NaN in the loss"),
    pytest.param(lambda: poisoned("gradient"), {}, "gradient of .* holds NaN.*try", id="NaN in a gradient"),
    pytest.param(lambda: model_of(Layer), {"modes": ["offload"]}, "unknown mode 'offload': give some of", id="mode"),
    pytest.param(lambda: model_of(Layer), {"modes": []}, "no mode to verify: give some of", id="no mode"),
    pytest.param(lambda: model_of(Layer), {"levels": ["speed"]}, "unknown level 'speed': give some of", id="level"),
]


@pytest.mark.parametrize(("build", "options", "message"), REFUSED)
def test_no_verdict_is_one_sentence_that_says_what_to_do(
    build: Callable[[], Any], options: dict[str, Any], message: str
) -> None:
    model = build()
    before = snapshot(model) if isinstance(model, Model) and not next(model.parameters()).is_meta else None
    with pytest.raises(VerifyError, match=message) as caught:
        verify(model, **{"inputs": values(), **options})
    assert "\n" not in str(caught.value)
    assert not str(caught.value).rstrip(".").count(". ")
    if before is not None:
        assert changed(before, snapshot(model)) == []


LEFT = [
    pytest.param(lambda: model_of(NormLayer, Layer), id="buffers"),
    pytest.param(lambda: model_of(FailingLayer, Layer), id="a backward that raises"),
    pytest.param(lambda: model_of(CachingLayer, CachingLayer, whole=PositionalCache), id="a cache"),
    pytest.param(lambda: model_of(Layer, Gated, by_keyword=True), id="a gate"),
    pytest.param(lambda: model_of(Stage, Layer, whole=Slipping), id="a slip"),
]


@pytest.mark.parametrize("build", LEFT)
def test_the_model_is_left_as_it_was(build: Callable[[], Model]) -> None:
    model = build()
    model.layers[1].eval()
    model.first.weight.grad = torch.full_like(model.first.weight, 5.0)
    model.last.bias.requires_grad_(False)
    model.first.register_forward_hook(lambda module, arguments, output: None)
    switch_checkpointing(model, "non_reentrant")
    before = snapshot(model)
    inputs = values()
    verify(model, inputs)
    assert changed(before, snapshot(model)) == []
    assert inputs.keys() == values().keys()
    assert torch.equal(inputs["values"], values()["values"])
    assert not inputs["values"].requires_grad


@torch.inference_mode()
def test_nothing_is_verified_in_inference_mode() -> None:
    with pytest.raises(VerifyError, match="Model cannot be trained in torch"):
        verify(model_of(Layer), values())
