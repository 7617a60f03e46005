"""A fault is explained if the calls of blocks show its cause, and left unexplained if they do not."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from ckpt_surgery.measure.causes import Case, explain
from ckpt_surgery.measure.kinds import FaultKind
from ckpt_surgery.measure.observed_calls import CallFacts
from ckpt_surgery.measure.record import RunRecord
from ckpt_surgery.measure.results import MODES, Fault, Mode
from ckpt_surgery.runtime.blocks.discovery import find_blocks
from tests.measure.fault_cases import fault, fault_at
from tests.measure.toys import Layer, Model, NormLayer, PlainLayer, Stage, SureLayer, model_of

pytestmark = [pytest.mark.both, pytest.mark.torch]

HEALTHY = CallFacts(input_requires_grad=True)
LEAKING = CallFacts(leaks=True)


def case(*facts: CallFacts, mode: Mode = "reentrant", model: Model | None = None) -> Case:
    """Build a model whose blocks were called like this."""
    whole = model or model_of(*[SureLayer] * max(len(facts), 1))
    blocks = {block.name: block for block in find_blocks(whole)}
    calls = dict(zip(blocks, facts, strict=False))
    record = RunRecord(1.0, calls=calls)
    return Case(whole, blocks, record, mode)


def cause(subject: Fault, example: Case) -> tuple[str, str]:
    (explained,) = explain([subject], example)
    assert dataclasses.replace(explained, explanation=None) == subject
    return explained.cause, explained.rule


NEVER = fault(FaultKind.NOT_RECOMPUTED, "layers.0")
LOST = fault(FaultKind.GRADIENT_LOST, "layers.0.linear.weight")
WRONG = fault(FaultKind.GRADIENT_VALUE, "layers.0.linear.weight")
CRASH = fault(FaultKind.STEP_RAISED)

TOLD = [
    pytest.param(CallFacts(keyword_gradient=("residual",)), "CKPT003", "`residual`", id="a tensor by keyword"),
    pytest.param(
        CallFacts(keyword_gradient=("residual",), returned=("residual",)),
        "CKPT003",
        "returns it",
        id="one handed back",
    ),
    pytest.param(CallFacts(container_gradient=("streams",)), "CKPT007", "`streams`", id="a container"),
    pytest.param(CallFacts(mutated=("shared",)), "CKPT007", "writes into `shared`", id="a container written into"),
    pytest.param(CallFacts(nested_output=True), "CKPT010", "returns", id="a nested output"),
    pytest.param(CallFacts(input_requires_grad=False), "", "needs gradient", id="an input without gradient"),
    pytest.param(CallFacts(positional_past=("cache",)), "CKPT004", "`cache`", id="past state by position"),
]


@pytest.mark.parametrize("of", [CRASH, LOST, WRONG, NEVER], ids=lambda of: of.level)
@pytest.mark.parametrize(("facts", "rule", "word"), TOLD)
def test_the_way_a_block_is_called_explains_reentrant_faults(
    facts: CallFacts, rule: str, word: str, of: Fault
) -> None:
    text, code = cause(of, case(HEALTHY, facts, HEALTHY))
    assert code == rule
    assert word in text
    assert "SureLayer" in text
    assert text.endswith(".")


@pytest.mark.parametrize("of", [CRASH, LOST, WRONG], ids=lambda of: of.level)
def test_only_what_harms_without_reentrant_explains_its_faults(of: Fault) -> None:
    explained = {
        param.id: cause(of, case(param.values[0], mode="non_reentrant"))[1]  # type: ignore[arg-type]
        for param in TOLD
    }
    harmful = {"past state by position": "CKPT004", "a container written into": "CKPT007"}
    assert explained == {str(param.id): harmful.get(str(param.id), "") for param in TOLD}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "of", [CRASH, LOST, WRONG, NEVER, fault_at("state"), fault_at("cost"), fault_at("ranks")], ids=lambda of: of.level
)
def test_what_nothing_explains_stays_unexplained(of: Fault, mode: Mode) -> None:
    assert cause(of, case(HEALTHY, HEALTHY, mode=mode)) == ("", "")


def test_the_nearest_cause_comes_first() -> None:
    both = case(CallFacts(nested_output=True, keyword_gradient=("residual",)))
    assert cause(WRONG, both)[1] == "CKPT003"


def test_leaked_tensors_explain_reentrant_values() -> None:
    assert "SureLayer" in cause(WRONG, case(LEAKING))[0]
    assert "router logits" in cause(WRONG, case(LEAKING))[0]
    assert cause(WRONG, case(LEAKING, mode="non_reentrant")) == ("", "")


@pytest.mark.parametrize("mode", MODES)
def test_a_plain_block_is_not_recomputed_and_saves_nothing_for_that_reason(mode: Mode) -> None:
    example = case(HEALTHY, HEALTHY, model=model_of(PlainLayer, PlainLayer), mode=mode)
    first, second = explain([NEVER, fault(FaultKind.KEPT_BYTES)], example)
    assert (first.rule, second.rule) == ("CKPT001", "CKPT001")
    assert first.cause == second.cause
    assert "PlainLayer is no GradientCheckpointingLayer" in first.cause


@pytest.mark.parametrize("mode", MODES)
def test_a_forward_that_was_replaced_is_named(mode: Mode) -> None:
    model = model_of(SureLayer)
    model.layers[0].forward = lambda hidden_states: hidden_states
    text, rule = cause(NEVER, case(HEALTHY, model=model, mode=mode))
    assert "layers.0 was replaced" in text
    assert rule == ""


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_inside_a_layer_explains_its_entries_and_its_work(mode: Mode) -> None:
    example = case(model=model_of(Stage, Layer), mode=mode)
    entries = fault(FaultKind.RECOMPUTE_COUNT, "layers.0.inner")
    work = fault(FaultKind.BACKWARD_FLOPS)
    for of in (entries, work):
        text, rule = cause(of, example)
        assert rule == "CKPT006"
        assert "Layer lies inside Stage" in text
    memory = fault(FaultKind.KEPT_BYTES)
    assert cause(memory, example) == ("", "")
    assert cause(work, case(model=model_of(Layer, Layer), mode=mode)) == ("", "")


def test_buffers_of_batch_normalisation_are_explained_and_others_are_not() -> None:
    model = model_of(NormLayer)
    model.layers[0].register_buffer("count", model.first.bias.detach())
    example = case(model=model)
    assert "batch normalisation" in cause(fault(FaultKind.BUFFER_CHANGED, "layers.0.norm.running_mean"), example)[0]
    assert cause(fault(FaultKind.BUFFER_CHANGED, "layers.0.count"), example) == ("", "")
    assert cause(fault(FaultKind.BUFFER_CHANGED, "nowhere.count"), example) == ("", "")
    assert cause(fault(FaultKind.BUFFER_CHANGED, "count"), example) == ("", "")


def test_a_cache_written_again_is_explained_by_its_place_if_known() -> None:
    of = fault(FaultKind.CACHE_WRITTEN, "input past_key_values")
    text, rule = cause(of, case(HEALTHY, CallFacts(positional_past=("past_key_values",))))
    assert (rule, "by position" in text) == ("CKPT004", True)
    text, rule = cause(of, case(HEALTHY))
    assert (rule, "writes into the cache again" in text) == ("", True)


@pytest.mark.parametrize("mode", MODES)
def test_a_generator_that_is_not_restored_explains_the_values_too(mode: Mode) -> None:
    slip = fault(FaultKind.RNG_NOT_RESTORED, "layers.0")
    values, state = explain([WRONG, slip], case(HEALTHY, mode=mode))
    assert "generator" in state.cause
    assert values.cause == state.cause


def test_faults_keep_their_order_and_a_model_without_blocks_names_its_rule() -> None:
    faults = [CRASH, fault(FaultKind.NO_BLOCKS), WRONG]
    explained = explain(faults, case(HEALTHY))
    assert [f.level for f in explained] == ["run", "recompute", "values"]
    assert explained[1].rule == "CKPT009"
    assert explain([], case(HEALTHY)) == ()
