"""One call's arguments: gradient arguments, past state, and the right list."""

from __future__ import annotations

import ast

import pytest

from ckpt_surgery.codemods.extract import extract
from ckpt_surgery.codemods.facts.file_facts import ForwardSignature
from ckpt_surgery.codemods.facts.syntax import Argument, arguments_of
from ckpt_surgery.codemods.tree.arguments import (
    ArgumentPlan,
    ArgumentRepair,
    Meaning,
    UnknownReason,
)
from ckpt_surgery.model_patches.family import FamilyFacts

NOTHING = FamilyFacts()


def forward(signature: str) -> ForwardSignature:
    parsed = extract(f"class Foo:\n    def forward(self, {signature}): ...\n").classes[0].forward
    assert parsed is not None
    return parsed


def arguments(call: str) -> tuple[Argument, ...]:
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call)
    return arguments_of(node)


def planned(
    signature: str, call: str, *, family: FamilyFacts = NOTHING, gradient: bool = True, past: bool = True
) -> ArgumentPlan:
    wanted = {ArgumentRepair.GRADIENT: gradient, ArgumentRepair.PAST_STATE: past}
    repairs = {repair for repair, is_wanted in wanted.items() if is_wanted}
    return ArgumentPlan.of(arguments(call), forward(signature), Meaning("Foo", family), repairs)


def written(signature: str, call: str, *, gradient: bool = True, past: bool = True) -> str:
    """Write the argument list that the plan asks for; empty if it asks for none."""
    args = arguments(call)
    new = planned(signature, call, gradient=gradient, past=past).arguments
    if new is None:
        return ""
    texts = []
    for argument in new:
        text = argument.text if argument.source is None else args[argument.source].text
        if argument.keyword == "**":
            texts.append(text if text.startswith("**") else f"**{text}")
        else:
            texts.append(f"{argument.keyword}={text}" if argument.keyword else text)
    return ", ".join(texts)


H = "hidden_states"
E = "encoder_hidden_states"
SIGNATURE = f"{H}, mask=None, {E}=None, past_key_values=None, output=False"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("f(a)", ""),
        ("f(a, m, e, past_key_values=p)", ""),
        ("f(a, past_key_values=p, output=o)", ""),
        (f"f({H}=a)", "a"),
        (f"f(mask=m, {H}=a)", "a, mask=m"),
        (f"f(a, {E}=e)", "a, None, e"),
        (f"f(a, {E}=e, mask=m)", "a, m, e"),
        (f"f(output=o, {E}=e, {H}=a, past_key_values=p)", "a, None, e, output=o, past_key_values=p"),
        ("f(a, m, e, p)", "a, m, e, past_key_values=p"),
        ("f(a, m, e, p, o)", "a, m, e, past_key_values=p, output=o"),
        ("f(a, m, e, p, output=o)", "a, m, e, past_key_values=p, output=o"),
        ("f(a, m, None, p)", "a, mask=m, encoder_hidden_states=None, past_key_values=p"),
        (f"f({H}=a, **k)", "a, **k"),
        ("f(a, m, e, None)", ""),
    ],
)
def test_the_argument_list(call: str, expected: str) -> None:
    assert written(SIGNATURE, call) == expected


@pytest.mark.parametrize(
    ("call", "reason"), [("f(*a)", UnknownReason.UNPACKED), ("f(a, m, e, p, o, x)", UnknownReason.SURPLUS)]
)
def test_a_call_that_cannot_be_bound_has_a_reason(call: str, reason: UnknownReason) -> None:
    assert planned(SIGNATURE, call) == ArgumentPlan(unknown=reason.about())


@pytest.mark.parametrize(
    ("parameter", "gradient", "past"),
    [
        ("hidden_states", True, False),
        ("image_hidden_states", True, False),
        ("position_bias", True, False),
        ("attention_mask", False, False),
        ("position_ids", False, False),
        ("output_hidden_states", False, False),
        ("output_hidden_states: bool = False", False, False),
        ("hidden_states: bool", False, False),
        ("hidden_states: torch.LongTensor", False, False),
        ("past_key_values: Cache | None", False, True),
        ("layer_past", False, True),
        ("cache_params", False, True),
    ],
)
def test_names_mean_what_they_mean_across_transformers(parameter: str, gradient: bool, past: bool) -> None:
    only = forward(f"first, {parameter}" if "=" not in parameter else f"first=None, {parameter}").params[1]
    meaning = Meaning("Foo", NOTHING)
    assert (meaning.gradient(only), meaning.past(only)) == (gradient, past)


def test_a_family_decides_for_one_class_or_for_all() -> None:
    state = forward("first, state=None, extra=None").params[1]
    for facts in (FamilyFacts(past_state=frozenset({"state"})), FamilyFacts(past_state=frozenset({"Foo.state"}))):
        assert Meaning("Foo", facts).past(state)
    assert not Meaning("Bar", FamilyFacts(past_state=frozenset({"Foo.state"}))).past(state)


def test_a_family_may_say_that_a_name_carries_no_gradient() -> None:
    bias = forward("first, position_bias=None").params[1]
    assert Meaning("Foo", NOTHING).gradient(bias)
    assert not Meaning("Foo", FamilyFacts(not_gradient=frozenset({"position_bias"}))).gradient(bias)


def test_the_first_parameter_carries_gradient_whatever_its_name() -> None:
    params = forward("pixels, mask=None").params
    assert Meaning("Foo", NOTHING).carriers(params) == {"pixels"}
    for signature in ("past_key_values, mask=None", "input_ids, mask=None", "*args"):
        assert Meaning("Foo", NOTHING).carriers(forward(signature).params) == set()
