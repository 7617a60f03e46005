"""A method's caches: what it reads under `use_cache`, and which caches it makes in training."""

from __future__ import annotations

import textwrap

import pytest

from ckpt_surgery.codemods.extract import extract
from ckpt_surgery.codemods.facts.file_facts import ModuleCall

GUARD = "if self.gradient_checkpointing and self.training and use_cache:\n    use_cache = False\n"
LOOP = "for layer in self.layers:\n    outputs = layer(hidden_states, cache)\n"
MAKE = "if use_cache and cache is None:\n    cache = Cache()\n"


def call(body: str, decorator: str = "") -> ModuleCall:
    """Find the block's call in a forward with this body."""
    head = f"class FooModel:\n    {decorator}\n    def forward(self, hidden_states, cache=None, use_cache=None):\n"
    (cls,) = extract(head + textwrap.indent(body, " " * 8)).classes
    (found,) = cls.calls
    return found


@pytest.mark.parametrize(
    "read",
    [
        "    if use_cache:\n        cache = outputs[1]",
        "    if use_cache:\n        cache += (outputs[2 if output_attentions else 1],)",
        "    if use_cache is True:\n        cache = outputs[-1]",
        "    cache = outputs[1] if use_cache else None",
        "    if use_cache:\n        hidden_states, cache = outputs",
        "    if use_cache and output_attentions:\n        cache = outputs[1]",
    ],
)
def test_a_later_output_is_read_under_use_cache_unless_training_unsets_it(read: str) -> None:
    assert "use_cache" in call(LOOP + read).reads_more_under
    assert "use_cache" not in call(GUARD + LOOP + read).reads_more_under
    assert "use_cache" not in call(LOOP + read, "@check_model_inputs").reads_more_under
    assert "use_cache" in call(LOOP + read, "@can_return_tuple").reads_more_under


@pytest.mark.parametrize(
    "read",
    [
        "    hidden_states = outputs[0]",
        "    if use_cache:\n        hidden_states = outputs[0]",
        "    if use_cache:\n        cache = outputs[1:]",
        "    if use_cache:\n        cache = others[1]",
        "    if output_attentions:\n        attention = outputs[1]",
        "    hidden_states, *cache = outputs",
    ],
)
def test_nothing_more_is_read_under_use_cache(read: str) -> None:
    assert "use_cache" not in call(LOOP + read).reads_more_under


@pytest.mark.parametrize(
    ("guard", "is_off"),
    [
        ("if self.gradient_checkpointing and self.training:\n    if use_cache:\n        use_cache = False\n", True),
        ("if self.training:\n    use_cache = False\n", True),
        ("use_cache = use_cache and not self.training\n", True),
        ("use_cache = use_cache if not self.training else False\n", True),
        ("use_cache = use_cache if use_cache is not None else (self.on if not self.training else False)\n", False),
        ("if not self.training:\n    use_cache = False\n", False),
        ("if self.gradient_checkpointing and self.training:\n    output_attentions = False\n", False),
        ("if output_attentions:\n    use_cache = False\n", False),
    ],
)
def test_a_switch_is_off_only_where_training_turns_it_off(guard: str, is_off: bool) -> None:
    read = "    if use_cache:\n        cache = outputs[1]"
    assert ("use_cache" not in call(guard + LOOP + read).reads_more_under) is is_off


@pytest.mark.parametrize(
    "body",
    [
        GUARD + LOOP,
        GUARD + MAKE + LOOP,
        GUARD + "if cache is None:\n    cache = tuple([None] * len(self.layers))\n" + LOOP,
        GUARD + "if use_cache:\n    cache = Cache() if cache is None else cache\n" + LOOP,
        GUARD + MAKE + "for layer, past in zip(self.layers, cache):\n    outputs = layer(hidden_states, past)\n",
        "use_cache = use_cache if use_cache is not None else (self.on if not self.training else False)\n"
        + MAKE
        + LOOP,
        "if use_cache and not self.training:\n    cache = Cache()\n" + LOOP,
    ],
)
def test_a_cache_is_idle_where_the_method_makes_none_in_training(body: str) -> None:
    assert 1 in call(body).idle_caches


@pytest.mark.parametrize(
    "body",
    [
        LOOP,
        MAKE + LOOP,
        MAKE + GUARD + LOOP,
        GUARD + "cache = {}\n" + LOOP,
        GUARD + "if cache is None:\n    cache = Cache()\n" + LOOP,
        GUARD + "cache = Cache() if cache is None else cache\n" + LOOP,
        "if not use_cache and self.training:\n    output_attentions = False\n" + MAKE + LOOP,
    ],
)
def test_a_cache_is_not_idle_where_the_method_may_make_one(body: str) -> None:
    assert 1 not in call(body).idle_caches
