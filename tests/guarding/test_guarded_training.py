"""What integrations of trainers share: the beginning, the end and the failure of a training, without a trainer."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import nn

from ckpt_surgery import GuardError, SurgeryWarning
from ckpt_surgery.guarding.guard import GuardOptions
from ckpt_surgery.guarding.guarded_training import GuardedTraining
from ckpt_surgery.guarding.takeover import TakeoverOptions
from tests.zoo.tiny_models import llama, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]


class Recipe(nn.Module):
    """A module around a model, which is never called itself."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model


def training(on_fault: Any = "warn") -> GuardedTraining:
    return GuardedTraining(TakeoverOptions(True, guard_options=GuardOptions(on_fault=on_fault)))


def step(model: Any) -> None:
    model(**tokens()).loss.backward()


def is_untouched(model: nn.Module) -> bool:
    hooks = [h for m in model.modules() for h in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]
    return not hooks and not any("forward" in vars(module) for module in model.modules())


def refusing() -> Any:
    """Make a model that can be neither wrapped nor watched."""
    model = llama(2)
    model.model.layers[0].compile(backend="eager")
    return model


def test_a_beginning_drops_the_reports_of_the_training_before() -> None:
    guarded = training("raise")
    guarded.begin(model := llama(2))
    step(model)
    guarded.end(prints=False)
    assert guarded.reports
    with pytest.raises(GuardError):
        guarded.begin(refusing())
    assert guarded.reports == ()


@pytest.mark.parametrize("within", [False, True], ids=["named", "found in a module"])
def test_the_end_reports_what_was_wrapped_and_undoes_it(within: bool, capsys: pytest.CaptureFixture[str]) -> None:
    model, guarded = llama(2), training()
    recipe = Recipe(model)
    guarded.begin_within(recipe) if within else guarded.begin(model)
    for _ in range(3):
        step(model)
        guarded.check()
    assert not guarded.reports
    guarded.end(prints=True)
    (report,) = guarded.reports
    assert [row.counts for row in report.blocks] == [(1, 1)] * 2
    assert str(report) in capsys.readouterr().err
    assert is_untouched(recipe)
    guarded.end(prints=True)
    assert [*guarded.reports] == [report]
    assert capsys.readouterr().err == ""


def test_other_ranks_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    model, guarded = llama(2), training()
    guarded.begin(model)
    step(model)
    guarded.fail(torch.OutOfMemoryError("full"), prints=False)
    guarded.end(prints=False)
    assert len(guarded.reports) == 1
    assert capsys.readouterr().err == ""


def test_a_training_that_begins_again_is_guarded_once() -> None:
    model, guarded = llama(2), training()
    for _ in range(2):
        guarded.begin(model)
        step(model)
    guarded.end(prints=False)
    assert guarded.reports[0].steps == 1
    assert is_untouched(model)


def test_models_that_train_in_turn_are_all_found_whenever_one_asks() -> None:
    both, guarded = nn.ModuleList([llama(2), llama(3), llama(4).requires_grad_(False)]), training()
    guarded.begin_within(both)
    guarded.check()
    for model in (*both[:2], *both[:2]):
        step(model)
        guarded.check()
    assert all(not module._forward_pre_hooks for module in both[2].modules())  # a frozen one is not waited for
    guarded.end(prints=False)
    assert [len(report.blocks) for report in guarded.reports] == [2, 3]


@pytest.mark.parametrize("within", [False, True], ids=["named", "found in a module"])
def test_a_model_that_cannot_be_wrapped_is_an_error_or_a_warning(within: bool) -> None:
    def run(on_fault: str) -> Any:
        model, guarded = refusing(), training(on_fault)
        guarded.begin_within(Recipe(model)) if within else guarded.begin(model)
        step(model)
        guarded.check()
        return model

    with pytest.warns(SurgeryWarning):
        run("warn")
    with pytest.raises(GuardError):
        run("raise")


def test_a_beginning_that_raises_leaves_the_model_as_it_was() -> None:
    model, guarded = refusing(), training("raise")
    with pytest.raises(GuardError):
        guarded.begin(model)
    assert is_untouched(model)
    guarded.end(prints=True)
    assert guarded.reports == ()


def test_an_error_for_want_of_memory_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    model, guarded = llama(2), training()
    recipe = Recipe(model)
    guarded.begin_within(recipe)
    step(model)
    guarded.fail(torch.OutOfMemoryError("CUDA out of memory."), prints=True)
    assert "ran out of memory" in capsys.readouterr().err
    guarded.end(prints=False)
    guarded.fail(torch.OutOfMemoryError("CUDA out of memory."), prints=True)
    assert capsys.readouterr().err == ""
