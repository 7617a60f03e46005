"""The options in force where checkpointing is switched on more than once, and the lines that gave them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import PreTrainedModel

from ckpt_surgery.guarding.switch_calls import SwitchCalls
from ckpt_surgery.guarding.takeover import Takeover, TakeoverOptions
from ckpt_surgery.model_patches.release_names import INNER_SWITCH
from tests.guarding.test_guard import train
from tests.guarding.test_takeover import plainly
from tests.measure.toys import SureLayer, model_of

pytestmark = [pytest.mark.both, pytest.mark.torch]

Call = Callable[[Any], None]


def switched_on(model: Any, **options: Any) -> None:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)


def said_of(*calls: Call, later: Call | None = None, wrap: bool | None = False) -> list[str]:
    """Return what a run says of a model with these switch calls, and perhaps one after its first step."""
    takeover, model = Takeover(TakeoverOptions(wrap), print), model_of(SureLayer, SureLayer)
    takeover.install()
    takeover.switches.watch()
    try:
        for call in calls:
            call(model)
        train(model, 2, between=lambda step: later(model) if later is not None and not step else None)
    finally:
        takeover.remove()
    (trained,) = takeover.trained
    return trained.said


REENTRANT, NON_REENTRANT = (partial(switched_on, use_reentrant=value) for value in (True, False))


def line_of(function: Callable[..., Any]) -> str:
    return f"{__file__}:{function.__code__.co_firstlineno + 1}"


def test_the_options_in_force_are_shown_with_those_they_override() -> None:
    def trainer(model: Any) -> None:
        model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})

    (said,) = said_of(REENTRANT, trainer)
    assert said == (
        "Model: checkpointing was switched on with other options before: use_reentrant=False, "
        f"preserve_rng_state=False at {line_of(trainer)} overrides use_reentrant=True, preserve_rng_state=True "
        f"at {line_of(switched_on)}"
    )


@pytest.mark.parametrize("wrap", [None, False])
def test_a_later_switch_is_said_too(wrap: bool | None) -> None:
    (said,) = said_of(REENTRANT, later=NON_REENTRANT, wrap=wrap)
    assert "use_reentrant=False at" in said
    assert "overrides use_reentrant=True at" in said


def test_options_that_a_surgery_keeps_are_overridden_by_nothing() -> None:
    assert said_of(partial(switched_on, use_reentrant=False, debug=True), later=NON_REENTRANT, wrap=None) == []


@pytest.mark.parametrize(
    "calls",
    [
        [REENTRANT],
        [REENTRANT, REENTRANT],
        [NON_REENTRANT, partial(switched_on, use_reentrant=False, preserve_rng_state=True)],
    ],
)
def test_nothing_is_said_of_equal_options(calls: list[Call]) -> None:
    assert said_of(*calls) == []


def test_a_call_of_a_library_is_named_where_no_script_has_called_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpt_surgery.guarding.switch_calls._LIBRARIES", ("",))
    (said,) = said_of(REENTRANT, NON_REENTRANT)
    assert f"at {line_of(switched_on)} overrides" in said


def test_another_function_of_the_script_is_named() -> None:
    def own(model: Any) -> None:
        getattr(model, INNER_SWITCH)(True, plainly)

    (said,) = said_of(REENTRANT, own)
    assert "gradient_checkpointing_func=plainly at" in said


def test_what_is_noted_holds_no_model() -> None:
    with SwitchCalls() as calls:
        calls.watch()
        model = model_of(SureLayer)
        switched_on(model, use_reentrant=False, context_fn=model.forward)
        switched_on(model, use_reentrant=False)
        ((override,),) = calls.of(model)
        last, model = ref(model), model_of(SureLayer)
        gc.collect()
    assert last() is None
    assert "overrides context_fn=Model.forward at" in str(override)


def test_the_method_of_transformers_is_its_own_again() -> None:
    before = vars(PreTrainedModel)[INNER_SWITCH]
    with SwitchCalls() as calls:
        calls.watch()
        assert vars(PreTrainedModel)[INNER_SWITCH] is not before
    assert vars(PreTrainedModel)[INNER_SWITCH] is before
