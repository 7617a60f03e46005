"""How a block is called: which arguments carry gradient and in what, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from torch import Tensor, nn

from ckpt_surgery.measure.meter import Meter
from ckpt_surgery.measure.observed_calls import CallFacts, CallObserver

pytestmark = [pytest.mark.both, pytest.mark.torch]


class Block(nn.Module):
    """A block that runs `work` on its arguments."""

    def __init__(self, work: Callable[..., Any]) -> None:
        super().__init__()
        self.work = work

    def forward(
        self, hidden_states: Any, residual: Any = None, past_key_values: Any = None, *rest: Any, **more: Any
    ) -> Any:
        return self.work(hidden_states, residual, past_key_values, *rest, **more)


def first(hidden_states: Any, *_: Any, **__: Any) -> Any:
    return hidden_states * 2


def facts(*args: Any, work: Callable[..., Any] = first, **kwargs: Any) -> CallFacts:
    block = Block(work)
    with CallObserver({"block": block}, Meter()) as observer:
        block(*args, **kwargs)
    return observer.facts()["block"]


def wanting() -> Tensor:
    return torch.ones(2, requires_grad=True) * 1


def plain() -> Tensor:
    return torch.ones(2)


@dataclass
class Pair:
    left: Any
    right: Any


def test_a_healthy_call_shows_nothing() -> None:
    cache = transformers.DynamicCache()
    call = facts(wanting(), plain(), past_key_values=cache, attention_mask=plain())
    assert call == CallFacts(input_requires_grad=True)


def test_tensors_with_gradient_by_keyword_are_named() -> None:
    seen = facts(wanting(), residual=wanting(), mask=plain(), position_bias=wanting())
    assert seen.keyword_gradient == ("residual", "position_bias")
    assert facts(wanting(), wanting()).keyword_gradient == ()


@pytest.mark.parametrize(
    "container",
    [
        pytest.param(lambda t: [t], id="a list"),
        pytest.param(lambda t: (plain(), t), id="a tuple"),
        pytest.param(lambda t: {"key": t}, id="a dictionary"),
        pytest.param(lambda t: [{"key": (t,)}], id="several inside each other"),
        pytest.param(lambda t: Pair(None, t), id="a dataclass"),
    ],
)
@pytest.mark.parametrize("by_keyword", [False, True])
def test_containers_with_gradient_are_named(container: Callable[[Tensor], Any], by_keyword: bool) -> None:
    def call(tensor: Tensor) -> CallFacts:
        given = container(tensor)
        return facts(wanting(), residual=given) if by_keyword else facts(wanting(), given)

    assert call(wanting()).container_gradient == ("residual",)
    assert call(wanting()).keyword_gradient == ()
    assert call(plain()).container_gradient == ()


@pytest.mark.parametrize(
    "past", [pytest.param(transformers.DynamicCache, id="a cache"), pytest.param(lambda: (plain(),), id="a name")]
)
def test_past_state_by_position_is_named(past: Callable[[], Any]) -> None:
    assert facts(wanting(), None, past()).positional_past == ("past_key_values",)
    assert facts(wanting(), past_key_values=past()).positional_past == ()
    assert facts(wanting(), None, None).positional_past == ()


def test_what_a_block_hands_back_as_it_was_is_named() -> None:
    def both(hidden: Any, residual: Any, *_: Any) -> Any:
        return hidden * 2, residual

    assert facts(wanting(), residual=wanting(), work=both).returned == ("residual",)
    assert facts(wanting(), wanting(), work=lambda h, r, *_: (h * 2, r * 1)).returned == ()


def test_containers_that_a_block_writes_into_are_named() -> None:
    def write(hidden: Any, residual: Any, *_: Any) -> Any:
        if isinstance(residual, dict):
            residual["last"] = hidden
        else:
            residual.append(hidden)
        return hidden * 2

    for given in ({}, {"last": wanting()}, [], [wanting()]):
        assert facts(wanting(), given, work=write).mutated == ("residual",)
        assert facts(wanting(), residual=given, work=write).mutated == ("residual",)
        assert facts(wanting(), given).mutated == ()


def test_an_output_with_gradient_inside_an_inner_container_is_nested() -> None:
    def returning(make: Callable[[Tensor], Any]) -> bool:
        return facts(wanting(), work=lambda hidden, *_: make(hidden * 2)).nested_output

    assert returning(lambda t: (t, (t,)))
    assert returning(lambda t: (t, [t], None))
    assert returning(lambda t: {"hidden": t, "states": {"more": t}})
    assert not returning(lambda t: t)
    assert not returning(lambda t: (t, t))
    assert not returning(lambda t: (t, (t.detach(),)))


def test_a_block_is_fed_by_a_positional_tensor_with_gradient_only() -> None:
    assert facts(wanting()).input_requires_grad
    assert not facts(plain()).input_requires_grad
    assert not facts(plain(), residual=wanting()).input_requires_grad
    assert not facts([wanting()], work=lambda given, *_: given[0] * 2).input_requires_grad


def test_randomness_that_a_block_draws_is_seen() -> None:
    assert facts(wanting(), work=lambda hidden, *_: nn.functional.dropout(hidden, 0.5)).uses_rng
    assert not facts(wanting(), work=lambda hidden, *_: nn.functional.dropout(hidden, 0.5, training=False)).uses_rng


def test_the_calls_of_one_block_are_seen_together() -> None:
    block = Block(first)
    with CallObserver({"block": block}, Meter()) as observer:
        block(wanting(), residual=wanting())
        block(plain(), [wanting()])
        block(wanting())
    assert observer.facts()["block"] == CallFacts(
        keyword_gradient=("residual",), container_gradient=("residual",), input_requires_grad=False
    )


def test_a_parameter_by_keyword_gets_its_gradient_all_the_same() -> None:
    class Scaled(nn.Module):
        def forward(self, values: Tensor, scale: Tensor) -> Tensor:
            return values * scale

    block = Scaled()
    with CallObserver({"block": block}, Meter()) as observer:
        block(wanting(), scale=nn.Parameter(torch.ones(2)))
        assert observer.facts()["block"].keyword_gradient == ()
        block(wanting(), scale=wanting())
    assert observer.facts()["block"].keyword_gradient == ("scale",)
