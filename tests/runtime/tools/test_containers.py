"""Tensors are found in containers, taken out of them, and put back."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from ckpt_surgery.runtime.tools.containers import (
    Flattener,
    Keys,
    hidden_tensors,
    keyed_tensors,
    put_at,
    tensors,
    unflatten,
)
from tests.zoo.surgery_toys import Handle

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


class Shared(MutableMapping[Any, Any]):
    """A mapping whose copies share their contents."""

    def __init__(self, **held: Any) -> None:
        self._held = held

    def __getitem__(self, key: str) -> Any:
        return self._held[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._held[key] = value

    def __delitem__(self, key: str) -> None:
        del self._held[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


class Fixed(dict[str, Any]):
    """A dictionary that nobody writes."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError


class Counted(tuple[Any, ...]):
    """A tuple whose constructor takes something other than its items."""

    def __new__(cls, first: Any, number: int) -> Counted:
        return super().__new__(cls, (first,) * number)


def expected() -> Tensor:
    return torch.rand(2, requires_grad=True)


def flattened(value: Any) -> tuple[Flattener, Any]:
    flattener = Flattener()
    return flattener, flattener.flatten(value)


CONTAINERS: dict[str, Callable[[Tensor, Any], Any]] = {
    "a tuple": lambda first, second: (first, second),
    "a list": lambda first, second: [first, second],
    "a dictionary": lambda first, second: {"first": first, "second": second},
    "an ordered dictionary": lambda first, second: OrderedDict(first=first, second=second),
    "another mapping": lambda first, second: UserDict(first=first, second=second),
    "a named tuple": Pair,
    "a dataclass": Open,
    "a frozen dataclass": Frozen,
    "a dataclass with slots": Slotted,
    "an output of a model": lambda first, second: BaseModelOutput(last_hidden_state=first, hidden_states=second),
    "containers in containers": lambda first, second: [{"a": (first, Open(second))}, Pair(first, [second])],
}
containers = pytest.mark.parametrize("name", CONTAINERS)


@containers
def test_a_container_is_put_together_with_other_tensors_in_the_places(name: str) -> None:
    tensor, other = expected(), torch.zeros(2)
    value = CONTAINERS[name](tensor, (other, 3))
    flattener, spec = flattened(value)
    assert [part is tensor for part in flattener.tensors] == [True]
    new = expected()
    again = unflatten(spec, [new])
    assert type(again) is type(value)
    held = list(tensors(again))
    assert [part is new or part is other for part in held] == [True] * len(list(tensors(value)))
    assert any(part is new for part in held)
    assert any(part is tensor for part in tensors(value))  # which is as it was
    assert not any(part is tensor for part in held)


@pytest.mark.parametrize("make", [lambda t: Shared(a=t), lambda t: Fixed(a=t), lambda t: Counted(t, 2)])
def test_a_container_of_a_custom_class_is_left_alone(make: Callable[[Tensor], Any]) -> None:
    tensor = expected()
    value = make(tensor)
    flattener, spec = flattened(value)
    assert flattener.tensors == []
    assert unflatten(spec, []) is value
    assert next(tensors(value)) is tensor


@containers
def test_what_a_spec_is_rebuilt_into_is_new_each_time(name: str) -> None:
    value = CONTAINERS[name](expected(), ())
    flattener, spec = flattened(value)
    first, second = unflatten(spec, flattener.tensors), unflatten(spec, flattener.tensors)
    assert first is not second
    assert first is not value


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda value: value["inner"].append(torch.zeros(1)), id="appended to"),
        pytest.param(lambda value: value.update(more=torch.zeros(1)), id="added to"),
        pytest.param(lambda value: value.clear(), id="emptied"),
    ],
)
def test_a_spec_keeps_containers_as_they_were(change: Callable[[Any], object]) -> None:
    value: dict[str, Any] = {"inner": [expected()], "other": 1}
    flattener, spec = flattened(value)
    change(value)
    again = unflatten(spec, flattener.tensors)
    assert list(again) == ["inner", "other"]
    assert len(again["inner"]) == 1


def test_containers_without_gradient_are_kept_as_they_were_too() -> None:
    value: dict[str, Any] = {}
    listed: list[Any] = []
    specs = [flattened(value)[1], flattened(listed)[1]]
    value["new"] = 1
    listed.append(1)
    assert [unflatten(spec, []) for spec in specs] == [{}, []]


def test_a_tuple_without_gradient_stays_the_very_same() -> None:
    value = (torch.zeros(2), Pair(1, (2, torch.zeros(2))), "text")
    _, spec = flattened(value)
    assert spec is value


def test_a_tensor_in_several_places_is_taken_once_and_put_back_everywhere() -> None:
    tensor = expected()
    flattener, spec = flattened([tensor, {"again": tensor}, (tensor,)])
    assert len(flattener.tensors) == 1
    new = expected()
    first, second, third = unflatten(spec, [new])
    assert first is second["again"] is third[0] is new


def test_an_attribute_that_a_dataclass_lacks_is_no_error() -> None:
    tensor = expected()
    flattener, spec = flattened(Unset(tensor))
    assert len(flattener.tensors) == 1
    assert unflatten(spec, [tensor]).first is tensor


def test_objects_of_which_nothing_is_known_stay() -> None:
    handle: Handle = Handle(tensor=expected())
    frozen: Any = MappingProxyType({})
    flattener, spec = flattened([handle, frozen, torch.float32, None, nn.Linear, "text", 1.5, ()])
    assert flattener.tensors == []
    assert unflatten(spec, [])[0] is handle


def test_tensors_in_such_objects_are_found_four_steps_deep() -> None:
    tensor = expected()
    inner = Handle(listed=[{"deep": tensor}])
    handle = Handle(inner=inner, module=nn.Linear(1, 1), kind=nn.Linear)
    assert [part is tensor for part in hidden_tensors(handle)] == [True]
    assert list(hidden_tensors(Handle(outer=handle))) == []
    vars(inner)["around"] = handle
    assert len(list(hidden_tensors(handle))) == 1  # and no search without end


def test_tensors_in_slots_are_found_too() -> None:
    class Narrow:
        __slots__ = ("state", "unset")

    class Narrower(Narrow):
        __slots__ = "more"

    value: Any = Narrower()
    value.state, value.more = expected(), Handle(state=expected())
    assert len(list(hidden_tensors(value))) == 2


@pytest.mark.parametrize(
    ("value", "keys"),
    [
        ([1, 2], (0,)),
        ({"a": [1]}, ("a", 0)),
        (({"a": 1}, 2), (0, "a")),
        ([Open((1, Pair(1, 2)))], (0, "first", 1, 1)),
        ([Frozen(1)], (0, "first")),
        ([Slotted([1])], (0, "first", 0)),
    ],
)
def test_a_value_is_put_where_keys_lead_and_the_outermost_container_stays(value: Any, keys: Keys) -> None:
    new = expected()
    assert put_at(value, keys, new) is value
    assert [(path, tensor) for path, tensor in keyed_tensors(value) if tensor is new] == [(keys, new)]


def test_a_tuple_is_copied_and_what_cannot_be_written_into_stays() -> None:
    new = expected()
    copied = put_at(Pair(1, 2), (1,), new)
    assert type(copied) is Pair
    assert copied.first == 1
    assert copied.second is new
    fixed = MappingProxyType({"a": 1})
    assert put_at(fixed, ("a",), new) is fixed
    assert fixed["a"] == 1
