"""One call of a block is taken apart into gradient tensors, past state and the rest, and put together again."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.modeling_outputs import BaseModelOutput

from ckpt_surgery import SurgeryError
from ckpt_surgery.runtime.call_arguments import Parts, Signature, at, fill, hidden_tensors, is_cache, paths, tensors

pytestmark = [pytest.mark.both, pytest.mark.torch]

Pair = namedtuple("Pair", "first second")


@dataclass
class Open:
    first: Any
    second: Any = 2


@dataclass(frozen=True)
class Frozen:
    first: Any
    second: Any = 2


@dataclass(slots=True)
class Slotted:
    first: Any
    second: Any = field(default=2)


@dataclass
class Unset:
    first: Any
    second: Any = field(init=False)


class Handle:
    def __init__(self, **contents: Any) -> None:
        vars(self).update(contents)


def wanted() -> Tensor:
    return torch.rand(2, requires_grad=True)


def taken(value: Any) -> tuple[Parts, Any]:
    parts = Parts(lambda tensor: tensor.requires_grad)
    return parts, parts.take(value, "it")


CONTAINERS: dict[str, Callable[[Tensor, Any], Any]] = {
    "a tuple": lambda one, other: (one, other),
    "a list": lambda one, other: [one, other],
    "a dictionary": lambda one, other: {"first": one, "second": other},
    "an ordered dictionary": lambda one, other: OrderedDict(first=one, second=other),
    "another mapping": lambda one, other: UserDict(first=one, second=other),
    "a named tuple": Pair,
    "a dataclass": Open,
    "a frozen dataclass": Frozen,
    "a dataclass with slots": Slotted,
    "an output of a model": lambda one, other: BaseModelOutput(last_hidden_state=one, hidden_states=other),
    "containers in containers": lambda one, other: [{"a": (one, Open(other))}, Pair(one, [other])],
}
containers = pytest.mark.parametrize("name", CONTAINERS)


@containers
def test_a_container_is_put_together_with_other_tensors_in_the_places(name: str) -> None:
    tensor, other = wanted(), torch.zeros(2)
    value = CONTAINERS[name](tensor, (other, 3))
    parts, recipe = taken(value)
    assert [one is tensor for one in parts.tensors] == [True]
    new = wanted()
    again = fill(recipe, [new])
    assert type(again) is type(value)
    found = list(tensors(again))
    assert [one is new or one is other for one in found] == [True] * len(list(tensors(value)))
    assert any(one is new for one in found)
    assert any(one is tensor for one in tensors(value))  # which is as it was
    assert not any(one is tensor for one in found)


@containers
def test_what_a_recipe_puts_together_is_new_each_time(name: str) -> None:
    value = CONTAINERS[name](wanted(), ())
    parts, recipe = taken(value)
    some, others = fill(recipe, parts.tensors), fill(recipe, parts.tensors)
    assert some is not others
    assert some is not value


@containers
def test_the_path_to_a_tensor_leads_to_it_in_a_value_of_the_same_form(name: str) -> None:
    parts, recipe = taken(CONTAINERS[name](wanted(), 1))
    new = wanted()
    assert at(CONTAINERS[name](new, 1), paths(recipe)[0]) is new
    assert len(parts.tensors) == len(paths(recipe)) == 1


def test_a_path_that_leads_nowhere_ends_in_none() -> None:
    assert at({"a": (1,)}, ("a", 1)) is None
    assert at(3, ("a",)) is None


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda value: value["inner"].append(torch.zeros(1)), id="appended to"),
        pytest.param(lambda value: value.update(more=torch.zeros(1)), id="added to"),
        pytest.param(lambda value: value.clear(), id="emptied"),
    ],
)
def test_a_recipe_keeps_containers_as_they_were(change: Callable[[Any], object]) -> None:
    value: dict[str, Any] = {"inner": [wanted()], "other": 1}
    parts, recipe = taken(value)
    change(value)
    again = fill(recipe, parts.tensors)
    assert list(again) == ["inner", "other"]
    assert len(again["inner"]) == 1


def test_containers_without_gradient_are_kept_as_they_were_too() -> None:
    value: dict[str, Any] = {}
    listed: list[Any] = []
    recipes = [taken(value)[1], taken(listed)[1]]
    value["new"] = 1
    listed.append(1)
    assert [fill(recipe, []) for recipe in recipes] == [{}, []]


def test_a_tuple_without_gradient_stays_the_very_same() -> None:
    value = (torch.zeros(2), Pair(1, (2, torch.zeros(2))), "text")
    parts, recipe = taken(value)
    assert recipe is value
    assert [name for name, _ in parts.left] == ["it", "it"]


def test_a_tensor_in_several_places_is_taken_once_and_put_back_everywhere() -> None:
    tensor = wanted()
    parts, recipe = taken([tensor, {"again": tensor}, (tensor,)])
    assert len(parts.tensors) == 1
    new = wanted()
    first, second, third = fill(recipe, [new])
    assert first is second["again"] is third[0] is new


def test_an_attribute_that_a_dataclass_lacks_is_no_error() -> None:
    tensor = wanted()
    parts, recipe = taken(Unset(tensor))
    assert len(parts.tensors) == 1
    assert fill(recipe, [tensor]).first is tensor


def test_objects_of_which_nothing_is_known_are_listed_and_stay_the_same() -> None:
    handle: Handle = Handle(tensor=wanted())
    frozen: Any = MappingProxyType({})
    parts, recipe = taken([handle, frozen, torch.float32, None, nn.Linear, "text", 1.5, ()])
    assert parts.tensors == []
    assert [value for _, value in parts.opaque] == [handle, frozen, torch.float32]
    assert fill(recipe, [])[0] is handle


def test_tensors_in_such_objects_are_found_four_steps_deep() -> None:
    tensor = wanted()
    inner = Handle(listed=[{"deep": tensor}])
    handle = Handle(inner=inner, module=nn.Linear(1, 1), kind=nn.Linear)
    assert [one is tensor for one in hidden_tensors(handle)] == [True]
    assert list(hidden_tensors(Handle(outer=handle))) == []
    vars(inner)["around"] = handle
    assert len(list(hidden_tensors(handle))) == 1  # and no search without end


def test_tensors_in_slots_are_found_too() -> None:
    class Narrow:
        __slots__ = ("state", "unset")

    class Narrower(Narrow):
        __slots__ = "more"

    value: Any = Narrower()
    value.state, value.more = wanted(), Handle(state=wanted())
    assert len(list(hidden_tensors(value))) == 2


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


def signature(block: nn.Module | None = None) -> Signature:
    block = block or Block()
    return Signature.of("Block b", block, block.forward)


def filled(layers: int = 1, length: int = 3) -> DynamicCache:
    cache = DynamicCache()
    for layer in range(layers):
        cache.update(torch.ones(1, 1, length, 1), torch.ones(1, 1, length, 1), layer)
    return cache


class Recurrent:
    """Past state by its name only; it has no length."""

    def __init__(self, state: Tensor) -> None:
        self.state = state


def test_arguments_have_the_names_of_the_signature() -> None:
    named = signature().named((1, 2, 3, 4, 5, 6), {"layer_past": 7, "new": 8})
    names = ["hidden", "mask", "past_key_values", "use_cache", "argument 5", "argument 6", "layer_past", "new"]
    assert list(named) == list(zip(names, range(1, 9), strict=True))


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        pytest.param((1, 2, DynamicCache()), {}, id="by position"),
        pytest.param((1, DynamicCache()), {}, id="by position under another name"),
        pytest.param((1, 2, None, False, DynamicCache()), {}, id="by position without a name"),
        pytest.param((1,), {"past_key_values": DynamicCache()}, id="by keyword"),
        pytest.param((1,), {"anything": DynamicCache()}, id="by a keyword of any name"),
        pytest.param((1,), {"layer_past": Recurrent(torch.zeros(2))}, id="by its name"),
        pytest.param((1, 2, Recurrent(torch.zeros(2))), {}, id="by its name and position"),
    ],
)
def test_past_state_is_left_out_by_type_and_by_name(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    new_args, new_kwargs = signature().without_past(args, kwargs)
    given, left = [*args, *kwargs.values()], [*new_args, *new_kwargs.values()]
    assert len(new_args) == len(args)
    assert list(new_kwargs) == list(kwargs)
    expected = [None if isinstance(value, (DynamicCache, Recurrent)) else value for value in given]
    assert left == expected
    assert expected != given


def test_the_caller_keeps_what_he_gave() -> None:
    cache = DynamicCache()
    kwargs = {"past_key_values": cache, "use_cache": True}
    assert signature().without_past((1,), kwargs)[1] == {"past_key_values": None, "use_cache": False}
    assert kwargs == {"past_key_values": cache, "use_cache": True}


@pytest.mark.parametrize("args", [(1, None, None, True), (1,)], ids=["by position", "by keyword"])
def test_use_cache_is_switched_off(args: tuple[Any, ...]) -> None:
    kwargs = {} if len(args) > 1 else {"use_cache": True}
    new_args, new_kwargs = signature().without_past(args, kwargs)
    assert (*new_args, *new_kwargs.values())[-1] is False


def test_a_call_without_past_state_is_the_very_same() -> None:
    args, kwargs = (1, torch.zeros(1), None, False), {"layer_past": None, "new": {"a": 1}}
    new_args, new_kwargs = signature().without_past(args, kwargs)
    assert new_args is args
    assert new_kwargs is kwargs


@pytest.mark.parametrize(
    "value",
    [torch.ones(2), (torch.ones(2), torch.ones(2)), [torch.ones(2)], {"state": torch.ones(2)}, 3],
    ids=["a tensor", "a tuple", "a list", "a dictionary", "a number"],
)
def test_past_state_that_a_block_can_only_read_stays(value: Any) -> None:
    assert signature().without_past((1,), {"layer_past": value})[1]["layer_past"] is value


def test_a_block_that_says_that_it_only_reads_its_cache_keeps_it() -> None:
    cache = filled()
    assert signature(Reading()).without_past((1,), {"past_key_values": cache})[1]["past_key_values"] is cache


@pytest.mark.parametrize(
    "cache",
    [filled(), Recurrent(torch.ones(2)), Recurrent([Handle(state=torch.ones(2))])],  # type: ignore[arg-type]
    ids=["a cache", "a tensor", "a tensor inside"],
)
@pytest.mark.parametrize("place", ["position", "keyword"])
def test_past_state_that_is_not_empty_is_refused(cache: Any, place: str) -> None:
    args, kwargs = ((1, 2, cache), {}) if place == "position" else ((1,), {"past_key_values": cache})
    with pytest.raises(SurgeryError, match=r"^Block b got past state in past_key_values that is not empty: "):
        signature().without_past(args, kwargs)


def test_a_cache_is_empty_for_a_layer_while_only_others_have_written_it() -> None:
    assert signature(LayerTwo()).without_past((1, 2, filled(layers=2)), {})[0] == (1, 2, None)
    with pytest.raises(SurgeryError, match="not empty"):
        signature(LayerTwo()).without_past((1, 2, filled(layers=3)), {})


def test_a_cache_is_known_by_its_class() -> None:
    class Own(DynamicCache):  # type: ignore[misc]  # transformers is not read by the type checker
        pass

    assert is_cache(DynamicCache())
    assert is_cache(Own())
    others: list[Any] = [Recurrent(torch.zeros(1)), {}, None, Own]
    assert not any(is_cache(value) for value in others)


def test_a_forward_without_a_signature_names_arguments_by_number() -> None:
    unknown = Signature.of("Block b", Block(), dict.fromkeys)
    assert [name for name, _ in unknown.named((1,), {"a": 2})][-1] == "a"
