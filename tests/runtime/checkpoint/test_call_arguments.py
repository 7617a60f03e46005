"""The arguments of a call have names, and past state is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import nn
from transformers import DynamicCache

from ckpt_surgery.runtime.checkpoint.call_arguments import BlockSignature, is_cache
from tests.zoo.surgery_toys import Handle

pytestmark = [pytest.mark.both, pytest.mark.torch]


class Block(nn.Module):
    def forward(
        self,
        hidden: Any,
        mask: Any = None,
        past_key_values: Any = None,
        use_cache: Any = False,
        *more: Any,
        layer_past: Any = None,
        **others: Any,
    ) -> Any:
        return hidden


class LayerTwo(Block):
    layer_idx = 2


class Reading(Block):
    _can_checkpoint_with_cache = True


def signature(block: nn.Module | None = None) -> BlockSignature:
    """Return the signature of a block of transformers."""
    block = block or Block()
    own = BlockSignature.of("Block b", block, block.forward, fills_cache=False)
    return replace(own, is_of_transformers=True)


def filled(layers: int = 1) -> DynamicCache:
    cache = DynamicCache()
    for layer in range(layers):
        cache.update(torch.ones(1, 1, 3, 1), torch.ones(1, 1, 3, 1), layer)
    return cache


class RecurrentCache:
    """Past state, by its name and the argument's, without a length."""

    def __init__(self, state: Any) -> None:
        self.state = state


def test_arguments_have_the_names_of_the_signature() -> None:
    named = signature().named((1, 2, 3, 4, 5, 6), {"layer_past": 7, "new": 8})
    names = ["hidden", "mask", "past_key_values", "use_cache", "argument 5", "argument 6", "layer_past", "new"]
    assert list(named) == list(zip(names, range(1, 9), strict=True))
    unknown = BlockSignature.of("Block b", Block(), dict.fromkeys, fills_cache=False)
    assert [name for name, _ in unknown.named((1,), {"a": 2})][-1] == "a"


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        pytest.param((1, 2, DynamicCache()), {}, id="by position"),
        pytest.param((1, DynamicCache()), {}, id="by position under another name"),
        pytest.param((1, 2, None, False, DynamicCache()), {}, id="by position without a name"),
        pytest.param((1,), {"past_key_values": DynamicCache(), "use_cache": True}, id="by keyword"),
        pytest.param((1,), {"anything": DynamicCache()}, id="by a keyword of any name"),
    ],
)
def test_own_caches_are_left_out_by_type(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    before = dict(kwargs)
    new_args, new_kwargs = signature().without_own_caches(args, kwargs)
    assert kwargs == before, "the caller keeps what he gave"
    assert list(new_kwargs) == list(kwargs)
    expected = [None if isinstance(value, DynamicCache) else value for value in (*args, *kwargs.values())]
    assert [*new_args, *new_kwargs.values()] == expected


def test_a_call_without_past_state_is_the_very_same() -> None:
    args, kwargs = (1, torch.zeros(1), None, False), {"layer_past": None, "new": {"a": 1}}
    new_args, new_kwargs = signature().without_own_caches(args, kwargs)
    assert new_args is args
    assert new_kwargs is kwargs


@pytest.mark.parametrize("change", [{"is_of_transformers": False}, {"cache_decides": True}], ids=str)
def test_caches_that_others_need_stay(change: dict[str, Any]) -> None:
    cache = DynamicCache()
    assert replace(signature(), **change).without_own_caches((1, 2, cache), {})[0] == (1, 2, cache)


def test_caches_that_the_caller_gave_stay() -> None:
    cache = DynamicCache()
    assert signature().without_own_caches((1, 2, cache), {}, [cache])[0] == (1, 2, cache)


STAYS: dict[str, Any] = {
    "a cache": filled(),
    "a recurrent cache": RecurrentCache(torch.ones(2)),
    "a tensor inside": RecurrentCache([Handle(state=torch.ones(2))]),
    "a tensor": torch.ones(2),
    "tensors": (torch.ones(2), torch.ones(2)),
    "a dictionary": {"state": torch.ones(2)},
    "no cache": Handle(),
}


@pytest.mark.parametrize("value", STAYS.values(), ids=STAYS)
@pytest.mark.parametrize("place", ["position", "keyword"])
def test_past_state_that_is_not_empty_and_what_is_none_stays(value: Any, place: str) -> None:
    args, kwargs = ((1, 2, value), {}) if place == "position" else ((1,), {"past_key_values": value})
    new_args, new_kwargs = signature().without_own_caches(args, kwargs)
    assert [*new_args, *new_kwargs.values()][-1] is value


def test_a_block_that_only_reads_its_cache_keeps_it() -> None:
    cache = DynamicCache()
    assert signature(Reading()).without_own_caches((1,), {"past_key_values": cache})[1]["past_key_values"] is cache


def test_a_cache_that_only_other_layers_wrote_is_empty() -> None:
    assert signature(LayerTwo()).without_own_caches((1, 2, filled(layers=2)), {})[0] == (1, 2, None)
    full = filled(layers=3)
    assert signature(LayerTwo()).without_own_caches((1, 2, full), {})[0] == (1, 2, full)


def test_a_cache_is_known_by_its_class() -> None:
    class Own(DynamicCache):  # type: ignore[misc]  # transformers is not read by the type checker
        pass

    assert is_cache(DynamicCache())
    assert is_cache(Own())
    others: list[Any] = [RecurrentCache(torch.zeros(1)), {}, None, Own]
    assert not any(is_cache(value) for value in others)
