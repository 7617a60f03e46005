"""Tensors are found in containers, taken out of them, and put back."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
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


class Fixed(dict[str, Any]):
    """A dictionary that nobody writes."""

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError


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
    "a frozen dataclass": Frozen,
    "an output of a model": lambda first, second: BaseModelOutput(last_hidden_state=first, hidden_states=second),
    "containers in containers": lambda first, second: [{"a": (first, Open(second))}, Pair(first, [second])],
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_is_put_together_anew_with_other_tensors_in_the_places(name: str) -> None:
    tensor, other = expected(), torch.zeros(2)
    value = CONTAINERS[name](tensor, (other, 3))
    flattener, spec = flattened(value)
    assert [part is tensor for part in flattener.tensors] == [True]
    new = expected()
    again = unflatten(spec, [new])
    assert type(again) is type(value)
    assert again is not value
    assert unflatten(spec, [new]) is not again
    held = list(tensors(again))
    assert [part is new or part is other for part in held] == [True] * len(list(tensors(value)))
    assert any(part is new for part in held)
    assert any(part is tensor for part in tensors(value))  # which is as it was


def test_what_cannot_be_rebuilt_stays() -> None:
    tensor = expected()
    values: list[Any] = [Fixed(a=tensor), MappingProxyType({}), Handle(tensor=tensor), (torch.zeros(2), Pair(1, (2,)))]
    for value in values:
        flattener, spec = flattened(value)
        assert flattener.tensors == []
        assert spec is value
        assert unflatten(spec, []) is value
    assert next(tensors(Fixed(a=tensor))) is tensor


def test_a_spec_keeps_containers_as_they_were() -> None:
    value: dict[str, Any] = {"inner": [expected()], "empty": [], "other": 1}
    flattener, spec = flattened(value)
    value["inner"].append(torch.zeros(1))
    value["empty"].append(1)
    value["more"] = torch.zeros(1)
    again = unflatten(spec, flattener.tensors)
    assert list(again) == ["inner", "empty", "other"]
    assert (len(again["inner"]), again["empty"]) == (1, [])


def test_a_tensor_in_several_places_is_taken_once_and_put_back_everywhere() -> None:
    tensor = expected()
    flattener, spec = flattened([tensor, {"again": tensor}, (tensor,)])
    assert len(flattener.tensors) == 1
    new = expected()
    first, second, third = unflatten(spec, [new])
    assert first is second["again"] is third[0] is new


def test_tensors_in_other_objects_are_found_four_steps_deep() -> None:
    tensor = expected()
    inner = Handle(listed=[{"deep": tensor}])
    handle = Handle(inner=inner, module=nn.Linear(1, 1), kind=nn.Linear)
    assert [part is tensor for part in hidden_tensors(handle)] == [True]
    assert list(hidden_tensors(Handle(outer=handle))) == []
    vars(inner)["around"] = handle
    assert len(list(hidden_tensors(handle))) == 1  # and no search without end


@pytest.mark.parametrize(
    ("value", "keys"),
    [
        ([1, 2], (0,)),
        (({"a": [1]}, 2), (0, "a", 0)),
        ([Open((1, Pair(1, 2)))], (0, "first", 1, 1)),
        ([Frozen(1)], (0, "first")),
    ],
    ids=str,
)
def test_a_value_is_put_where_keys_lead(value: Any, keys: Keys) -> None:
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
