"""After `wrap_blocks` every family trains as without checkpointing, and as released the broken ones do not."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor

from ckpt_surgery import wrap_blocks
from ckpt_surgery.measure.block_entries import Entries, EntryCounter
from ckpt_surgery.measure.loss import loss_of
from ckpt_surgery.measure.restore import model_state_kept
from ckpt_surgery.measure.results import MODES
from ckpt_surgery.measure.switch import switch_checkpointing
from ckpt_surgery.runtime.checkpoint.call_arguments import is_cache
from tests.measure.toys import changed, snapshot
from tests.zoo.families import FAMILIES, SEED, Family, Subject

HERE = [family for family in FAMILIES if family.known is not None]
MOST_KEPT = 1.02
"""What may be kept beside blocks' inputs and outputs: running statistics as they were, and what blocks leave on
themselves."""


@pytest.fixture(scope="module", params=HERE, ids=str)
def subject(request: pytest.FixtureRequest) -> Subject:
    return Subject(request.param)


@pytest.mark.both
def test_a_wrapped_model_trains_as_without(subject: Subject) -> None:
    for rate in subject.rates:
        subject.drop(rate)
        with wrap_blocks(subject.model):
            run = subject.run("non_reentrant")
        verdict = subject.judged(run)
        assert verdict.ok, f"at dropout {rate}: " + "\n".join(map(str, verdict.faults))
        assert set(run.entries.values()) == {Entries(1, 1)}
        if not any(map(is_cache, subject.inputs.values())):  # else it is filled
            assert run.memory.kept <= MOST_KEPT * subject.reference.memory.best


@pytest.mark.both
def test_a_released_model_has_the_known_faults(subject: Subject) -> None:
    subject.drop(0.0)
    verdicts = {mode: subject.judged(subject.run_as_released(mode)) for mode in MODES}
    levels = {mode: {fault.level for fault in verdict.faults} for mode, verdict in verdicts.items() if not verdict.ok}
    expected = subject.family.known or {}
    assert levels.keys() == expected.keys()
    assert all(expected[mode] in failed for mode, failed in levels.items()), levels


@pytest.mark.both
def test_undoing_hands_the_model_back(subject: Subject) -> None:
    before = snapshot(subject.model)
    surgery = wrap_blocks(subject.model)
    switch_checkpointing(subject.model, "reentrant")
    assert changed(before, snapshot(subject.model))
    with model_state_kept(subject.model):
        step(subject)
    surgery.undo()
    assert changed(before, snapshot(subject.model)) == []


@pytest.mark.both
def test_dropout_is_on_where_it_is_switched_on(subject: Subject) -> None:
    for rate in subject.rates:
        subject.drop(rate)
        assert any(call.uses_rng for call in subject.reference.calls.values()) == (rate > 0)


def test_gradients_inside_a_cache_are_kept() -> None:
    subject = Subject(Family("DiffusionGemmaModel", drops=False))
    with wrap_blocks(subject.model):
        assert subject.judged(subject.run("non_reentrant")).ok


@pytest.mark.torch
def test_a_model_that_goes_on_with_caches_of_parts_trains() -> None:
    subject = Subject(Family("PI0Model", drops=False))
    assert "no attribute 'get_seq_length'" in str(subject.run_as_released("non_reentrant").error)
    with wrap_blocks(subject.model):
        run = subject.run("non_reentrant")
    assert subject.judged(run).ok
    assert set(run.entries.values()) == {Entries(1, 1)}


@pytest.mark.torch
def test_a_part_that_fails_without_a_cache_keeps_it() -> None:
    subject = Subject(Family("MoshiForConditionalGeneration", drops=False))
    assert "IndexError" in str(subject.run_as_released("non_reentrant").error)
    with wrap_blocks(subject.model):
        run = subject.run("non_reentrant")
    assert subject.judged(run).ok


def step(subject: Subject) -> tuple[Mapping[str, Tensor], Mapping[str, Entries]]:
    """Return a plain step's gradients and the entries into blocks, without leaving gradients on the model."""
    model = subject.model
    torch.manual_seed(SEED)
    with model_state_kept(model), EntryCounter(model, subject.blocks) as counter:
        loss = loss_of(model(**copy.deepcopy(subject.inputs)))
        counter.start_backward()
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return gradients, counter.entries()
