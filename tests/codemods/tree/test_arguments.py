"""What the facts of a family say about a parameter, for one class or for all."""

from __future__ import annotations

from ckpt_surgery.codemods.extract import extract
from ckpt_surgery.codemods.facts.file_facts import Parameter
from ckpt_surgery.codemods.tree.arguments import Meaning
from ckpt_surgery.model_patches.family import FamilyFacts

NOTHING = FamilyFacts()


def parameter(name: str) -> Parameter:
    parsed = extract(f"class Foo:\n    def forward(self, first, {name}=None): ...\n").classes[0].forward
    assert parsed is not None
    return parsed.params[1]


def test_a_family_decides_for_one_class_or_for_all() -> None:
    state = parameter("state")
    for facts in (FamilyFacts(past_state=frozenset({"state"})), FamilyFacts(past_state=frozenset({"Foo.state"}))):
        assert Meaning("Foo", facts).past(state)
    assert not Meaning("Bar", FamilyFacts(past_state=frozenset({"Foo.state"}))).past(state)


def test_a_family_may_say_that_a_name_carries_no_gradient() -> None:
    bias = parameter("position_bias")
    assert Meaning("Foo", NOTHING).gradient(bias)
    assert not Meaning("Foo", FamilyFacts(not_gradient=frozenset({"position_bias"}))).gradient(bias)
