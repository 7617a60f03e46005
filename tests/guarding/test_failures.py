"""An error of the guard itself ends its watch, and never the training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import nn

from ckpt_surgery import GuardError, SurgeryWarning, guard
from ckpt_surgery.guarding import call_graph
from ckpt_surgery.guarding.proof import BlockWitness
from ckpt_surgery.guarding.results import CheckedStep
from ckpt_surgery.guarding.steps import SecondRun, StepHooks
from ckpt_surgery.guarding.trained import UntrainedParameters
from ckpt_surgery.measure.block_entries import EntryCounter
from tests.guarding.test_guard import enable, train
from tests.measure.toys import SureLayer, model_of

pytestmark = [pytest.mark.both, pytest.mark.torch]


class ThirdUseFails:
    """A function that raises from its third call on."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._calls = 0

    def __get__(self, instance: Any, _: type) -> Any:
        return self if instance is None else lambda *args, **kwargs: self(instance, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._calls += 1
        if self._calls > 2:
            raise KeyError("a bug")
        return self._function(*args, **kwargs)


def model() -> Any:
    made = model_of(SureLayer, SureLayer)
    enable(made)
    return made


def hooks(model: nn.Module) -> int:
    names = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks")
    parts = [*model.modules(), *model.parameters()]
    return sum(len(getattr(part, name, None) or {}) for part in parts for name in names)


@pytest.mark.parametrize(
    ("home", "name", "on_fault"),
    [
        (StepHooks, "before", "warn"),
        (StepHooks, "_after", "raise"),
        (StepHooks, "_reached", "warn"),
        (StepHooks, "_finish", "raise"),
        (BlockWitness, "_enter", "warn"),
        (BlockWitness, "_leave", "raise"),
        (SecondRun, "_enter_block", "warn"),
        (CheckedStep, "undo", "warn"),
        (EntryCounter, "_count", "warn"),
        (UntrainedParameters, "_note", "warn"),
        (call_graph, "add_gradient", "warn"),
        (call_graph, "_note_first", "raise"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_training_goes_on_as_without_the_guard(
    home: Any, name: str, on_fault: Any, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    expected = train(model(), steps=5)
    watched = model()
    before = hooks(watched)
    monkeypatch.setattr(home, name, ThirdUseFails(getattr(home, name)))
    with guard(watched, on_fault=on_fault) as watching:
        assert train(watched, steps=5) == expected
        report = watching.report()
    said = [str(warning.message) for warning in recwarn if warning.category is SurgeryWarning]
    assert said == [
        f"Model: the guard failed and stopped watching ({report.failure}); the training goes on without it"
    ]
    assert report.failure == "KeyError: 'a bug'"
    assert report.failure in str(report)
    assert hooks(watched) == before
    assert all("forward" not in vars(layer) for layer in watched.layers)


def test_a_fault_that_is_to_be_raised_is_raised() -> None:
    faulty = model()
    faulty.layers[1].eval()
    with guard(faulty, on_fault="raise"), pytest.raises(GuardError, match=r"layers\.1 ran in the forward"):
        train(faulty)


def test_an_error_of_the_script_and_an_interrupt_pass(recwarn: pytest.WarningsRecorder) -> None:
    for error in (ValueError("the script's own"), KeyboardInterrupt()):
        failing = model()

        def fail(*_: Any, error: BaseException = error) -> None:
            raise error

        failing.layers[1].register_forward_hook(fail)
        with guard(failing) as watching, pytest.raises(type(error)):
            train(failing)
        assert not watching.failure
    assert not [warning for warning in recwarn if warning.category is SurgeryWarning]


def test_a_block_that_cannot_run_alone_stays_unproved() -> None:
    runs = iter(("forward", "recompute"))

    class Counted(SureLayer):
        def forward(self, hidden_states: torch.Tensor) -> Any:
            if next(runs, None) is None:
                raise KeyError("a third run")
            return torch.tanh(self.linear(hidden_states))

    fragile = model_of(Counted)
    enable(fragile)
    with guard(fragile, on_fault="raise") as watching:
        train(fragile, steps=1)
    (row,) = watching.report().blocks
    assert row.proof.detail == "KeyError: 'a third run'"
    assert not watching.failure
