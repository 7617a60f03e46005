"""What mutable objects held comes back in place, however deep, and goes away again."""

from __future__ import annotations

import collections
import io
import itertools
import random
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy
import pytest

pytest.importorskip("torch")

import torch

from ckpt_surgery.runtime.contents import CannotRestore, Contents

pytestmark = [pytest.mark.torch]


class Slotted:
    __slots__ = ("count", "more")
    more: list[int]

    def __init__(self) -> None:
        self.count = 0


@dataclass
class Counter:
    count: int = 0
    inner: list[dict[str, Any]] = field(default_factory=lambda: [{"seen": [0]}])


def counted(counter: Counter) -> None:
    counter.count += 1
    counter.inner[0]["seen"].append(counter.count)


def slotted(value: Slotted) -> None:
    value.count, value.more = value.count + 1, []


def drawn(value: random.Random) -> None:
    value.random()


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "dict": (lambda: {"a": 1}, lambda v: v.update(b=2), dict),
    "ordered dict": (lambda: OrderedDict(a=1, b=2), lambda v: v.move_to_end("a"), lambda v: list(v.items())),
    "default dict": (lambda: collections.defaultdict(list), lambda v: v["x"], dict),
    "list": (lambda: [1, 2], lambda v: v.reverse(), list),
    "set": (lambda: {1, 2}, lambda v: v.clear(), set),
    "deque": (lambda: deque([1], maxlen=2), lambda v: v.extend([2, 3]), list),
    "bytearray": (lambda: bytearray(b"ab"), lambda v: v.append(1), bytes),
    "array": (lambda: array("d", [1.0]), lambda v: v.append(2.0), list),
    "numpy array": (lambda: numpy.zeros(3), lambda v: v.__iadd__(1), lambda v: v.tolist()),
    "attributes": (Counter, counted, lambda v: (v.count, str(v.inner))),
    "namespace in a tuple": (
        lambda: (SimpleNamespace(x=[1]),),
        lambda v: v[0].x.append(2),
        lambda v: list(v[0].x),
    ),
    "slots": (Slotted, slotted, lambda v: (v.count, hasattr(v, "more"))),
    "proxy": (lambda: MappingProxyType({"a": [1]}), lambda v: v["a"].append(2), lambda v: list(v["a"])),
    "random": (lambda: random.Random(0), drawn, lambda v: v.getstate()),
    "numpy generator": (
        lambda: numpy.random.default_rng(0),
        lambda v: v.random(),
        lambda v: str(v.bit_generator.state),
    ),
    "numpy random state": (
        lambda: numpy.random.RandomState(0),
        lambda v: v.rand(),
        lambda v: str(v.get_state(legacy=False)),
    ),
    "torch generator": (
        lambda: torch.Generator().manual_seed(0),
        lambda v: torch.rand(1, generator=v),
        lambda v: v.get_state().tolist(),
    ),
    "tensor in a list": (lambda: [torch.zeros(2)], lambda v: v[0].add_(1), lambda v: v[0].tolist()),
    "stream": (io.StringIO, lambda v: v.write("a"), lambda v: (v.getvalue(), v.tell())),
    "stream of bytes": (io.BytesIO, lambda v: v.write(b"a"), lambda v: (v.getvalue(), v.tell())),
    "iterator in a dict": (
        lambda: {"i": itertools.count(1)},
        lambda v: next(v["i"]),
        lambda v: repr(v["i"]),
    ),
}


@pytest.mark.parametrize(("make", "write", "read"), CASES.values(), ids=list(CASES))
def test_what_an_object_held_is_there_inside_and_gone_afterwards(
    make: Callable[[], Any], write: Callable[[Any], Any], read: Callable[[Any], Any]
) -> None:
    value = make()
    at_entry = read(value)
    contents = Contents([("value", value)])
    write(value)
    now = read(value)
    assert now != at_entry
    assert contents.changed() == {"value"}
    for _ in range(2):  # as in two backwards through a graph that is kept
        with contents.restored():
            assert read(value) == at_entry
            write(value)
            assert read(value) == now
        assert read(value) == now


def test_what_is_not_written_has_not_changed() -> None:
    for make, _, _ in CASES.values():
        value = make()
        if "i" not in value if isinstance(value, dict) else True:  # an iterator may always have moved
            assert Contents([("value", value)]).changed() == set()


def test_an_exception_inside_leaves_everything_as_it_was() -> None:
    value = [1]
    contents = Contents([("value", value)])
    value.append(2)
    with pytest.raises(ZeroDivisionError), contents.restored():
        raise ZeroDivisionError
    assert value == [1, 2]


def test_a_generator_that_moved_and_a_large_tensor_that_was_written_cannot_come_back() -> None:
    generator = (number for number in range(9))
    contents = Contents([("schedule", [generator])])
    contents.check_generators()
    next(generator)
    with pytest.raises(CannotRestore, match="went on with a generator") as caught:
        contents.check_generators()
    assert caught.value.root == "schedule"

    large = torch.zeros(5000)
    contents = Contents([("table", {"large": large})])
    large.add_(1)
    with pytest.raises(CannotRestore, match="modified in place"), contents.restored():
        pass
    contents = Contents([("table", {"large": large})], written={"table"})
    large.add_(1)
    with contents.restored():
        assert float(large.sum()) == 10000  # the same tensor: its place is taken by a copy
    holder = {"large": large}
    contents = Contents([("table", holder)], copy_all=True)
    large.add_(1)
    with contents.restored():
        assert float(holder["large"].sum()) == 10000
    assert holder["large"] is large


def test_a_tensor_with_a_graph_is_held_without_it() -> None:
    leaf = torch.ones(2, requires_grad=True)
    holder = [leaf * 2]
    contents = Contents([("holder", holder)])
    assert contents.changed() == set()
    with contents.restored():
        assert holder[0].grad_fn is None
        assert holder[0].requires_grad
        assert holder[0].tolist() == [2, 2]
    assert holder[0].grad_fn is not None


def test_configurations_and_classes_are_not_followed_and_of_modules_only_numbers_are_read() -> None:
    transformers = pytest.importorskip("transformers")
    assert not Contents([("b", transformers.LlamaConfig()), ("c", Counter), ("d", 3), ("e", "text")])
    model: Any = torch.nn.Sequential(torch.nn.Linear(1, 1))
    model.steps = 0
    contents = Contents([("owner", [model])])
    model.steps = 1
    model.append(torch.nn.Linear(1, 1))
    with contents.restored():
        assert (model.steps, len(model)) == (0, 2)
    assert (model.steps, len(model)) == (1, 2)
