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
KEYWORD = CallFacts(keyword_gradient=("residual",))
BOTH: tuple[Mode, ...] = MODES
REENTRANT: tuple[Mode, ...] = ("reentrant",)

TOLD = [
    pytest.param(KEYWORD, "CKPT003", "`residual`", REENTRANT, id="a tensor by keyword"),
    pytest.param(
        CallFacts(keyword_gradient=("residual",), returned=("residual",)),
        "CKPT003",
        "returns it",
        REENTRANT,
        id="one handed back",
    ),
    pytest.param(CallFacts(container_gradient=("streams",)), "CKPT007", "`streams`", REENTRANT, id="a container"),
    pytest.param(CallFacts(mutated=("shared",)), "CKPT007", "writes into `shared`", BOTH, id="one written into"),
    pytest.param(CallFacts(nested_output=True), "CKPT010", "returns", REENTRANT, id="a nested output"),
    pytest.param(CallFacts(input_requires_grad=False), "", "needs gradient", REENTRANT, id="input without gradient"),
    pytest.param(CallFacts(positional_past=("cache",)), "CKPT004", "`cache`", BOTH, id="past state by position"),
    pytest.param(CallFacts(leaks=True), "", "router logits", REENTRANT, id="a tensor left aside"),
]


@pytest.mark.parametrize("of", [CRASH, LOST, WRONG], ids=lambda of: of.level)
@pytest.mark.parametrize(("facts", "rule", "word", "modes"), TOLD)
def test_the_way_a_block_is_called_explains_faults_of_the_modes_it_harms(
    facts: CallFacts, rule: str, word: str, modes: tuple[Mode, ...], of: Fault
) -> None:
    for mode in MODES:
        text, code = cause(of, case(HEALTHY, facts, mode=mode))
        if mode in modes:
            assert code == rule
            assert word in text
            assert "SureLayer" in text
            assert text.endswith(".")
        else:
            assert (text, code) == ("", "")


def test_a_block_that_is_not_recomputed_is_explained_by_its_call() -> None:
    assert cause(NEVER, case(KEYWORD))[1] == "CKPT003"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "of", [CRASH, LOST, WRONG, NEVER, fault_at("state"), fault_at("cost"), fault_at("ranks")], ids=lambda of: of.level
)
def test_what_nothing_explains_stays_unexplained(of: Fault, mode: Mode) -> None:
    assert cause(of, case(HEALTHY, HEALTHY, mode=mode)) == ("", "")


def test_the_nearest_cause_comes_first() -> None:
    both = case(CallFacts(nested_output=True, keyword_gradient=("residual",)))
    assert cause(WRONG, both)[1] == "CKPT003"


def test_a_plain_block_is_not_recomputed_and_saves_nothing_for_that_reason() -> None:
    example = case(HEALTHY, HEALTHY, model=model_of(PlainLayer, PlainLayer))
    first, second = explain([NEVER, fault(FaultKind.KEPT_BYTES)], example)
    assert (first.rule, second.rule) == ("CKPT001", "CKPT001")
    assert first.cause == second.cause


def test_a_forward_that_was_replaced_is_named() -> None:
    model = model_of(SureLayer)
    model.layers[0].forward = lambda hidden_states: hidden_states
    text, rule = cause(NEVER, case(HEALTHY, model=model))
    assert "layers.0 was replaced" in text
    assert rule == ""


def test_a_layer_inside_a_layer_explains_its_work_and_not_its_memory() -> None:
    example = case(model=model_of(Stage, Layer))
    work = fault(FaultKind.BACKWARD_FLOPS)
    assert cause(work, example)[1] == "CKPT006"
    assert cause(fault(FaultKind.KEPT_BYTES), example) == ("", "")
    assert cause(work, case(model=model_of(Layer, Layer))) == ("", "")


@pytest.mark.parametrize("other", ["layers.0.count", "nowhere.count", "count"])
def test_buffers_of_batch_normalisation_are_explained_and_others_are_not(other: str) -> None:
    model = model_of(NormLayer)
    model.layers[0].register_buffer("count", model.first.bias.detach())
    example = case(model=model)
    assert "batch normalisation" in cause(fault(FaultKind.BUFFER_CHANGED, "layers.0.norm.running_mean"), example)[0]
    assert cause(fault(FaultKind.BUFFER_CHANGED, other), example) == ("", "")


def test_a_cache_written_again_is_explained_by_its_place_if_known() -> None:
    of = fault(FaultKind.CACHE_WRITTEN, "input past_key_values")
    assert cause(of, case(HEALTHY, CallFacts(positional_past=("past_key_values",))))[1] == "CKPT004"
    text, rule = cause(of, case(HEALTHY))
    assert (rule, "writes into the cache again" in text) == ("", True)


def test_a_generator_that_is_not_restored_explains_the_values_too() -> None:
    slip = fault(FaultKind.RNG_NOT_RESTORED, "layers.0")
    values, none, state = explain([WRONG, fault(FaultKind.NO_BLOCKS), slip], case(HEALTHY))
    assert "generator" in state.cause
    assert values.cause == state.cause
    assert none.rule == "CKPT009"
