"""What mutable objects held at one moment, however deep: a recompute reads it, and leaves nothing behind in it.

The objects stay the same ones; what they hold is put back in place. So it does not matter by how many ways a block
reaches an object, or who else holds it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import is_
from types import FunctionType, GeneratorType, MappingProxyType, MethodType
from typing import Any

from torch import Tensor

from ckpt_surgery.runtime.iterators import fork, generators_in, is_plain_iterator, position
from ckpt_surgery.runtime.mutable_kinds import MutableKind, Pairs, kinds_of
from ckpt_surgery.runtime.tools.containers import PLAIN
from ckpt_surgery.runtime.tools.tensors import copy_of, is_plain, same_bits, unseen_for, version

SMALL = 4096
"""Elements of a tensor of which a copy costs next to nothing."""
_MOST_OBJECTS = 2048
"""Objects that are followed from one root. Whoever holds more holds data, and not the state of a block."""


class CannotRestore(Exception):
    """Something below a root has changed and cannot be put back; `root` and `what` name it."""

    def __init__(self, root: Hashable, what: str) -> None:
        super().__init__(what)
        self.root = root
        self.what = what


@dataclass(slots=True)
class _Held:
    """One object below `root`, in one of its kinds: the pairs that it held, and which objects those were."""

    root: Hashable
    value: Any
    kind: MutableKind
    pairs: Pairs
    ids: list[int]

    def changed(self) -> bool:
        """Whether the object holds something else now."""
        now = self.kind.read(self.value)
        if [key for key, _ in now] != [key for key, _ in self.pairs]:
            return True
        if self.kind.container:
            return [id(item) for _, item in now] != self.ids
        return not all(_equal(old, new) for (_, old), (_, new) in zip(self.pairs, now, strict=True))


@dataclass(slots=True)
class _HeldTensor:
    """A tensor below `root`, and a copy that nobody writes, unless it is too large to be copied on suspicion."""

    root: Hashable
    tensor: Tensor
    version: int
    copy: Tensor | None


@dataclass(frozen=True, slots=True)
class _HeldIterator:
    """An iterator below `root`: a fork that nobody advances or, of a generator, its position."""

    root: Hashable
    iterator: Any
    kept: Any


class Contents:
    """What can be reached from `roots`, each a key and a value, and can be written.

    Tensors are copied where they are small, below the roots in `written`, and everywhere with `copy_all`. Those with
    a graph are held without it, or the state of a block would hold on to the steps before.
    """

    __slots__ = ("_held", "_iterators", "_tensors", "cut")

    def __init__(
        self, roots: Iterable[tuple[Hashable, Any]], *, written: Collection[Hashable] = (), copy_all: bool = False
    ) -> None:
        self._held: list[_Held] = []
        self._tensors: dict[int, _HeldTensor] = {}
        self._iterators: list[_HeldIterator] = []
        self.cut: dict[int, tuple[Hashable, Tensor]] = {}
        """What stands in for tensors with a graph, by their ids, each with its root."""
        seen: set[int] = set()
        for root, value in roots:
            self._follow(root, value, seen, copied=copy_all or root in written)

    def __bool__(self) -> bool:
        return bool(self._held or self._iterators or self._tensors)

    def roots(self) -> set[Hashable]:
        """The roots below which something can be written."""
        every: list[_Held | _HeldTensor | _HeldIterator] = [*self._held, *self._tensors.values(), *self._iterators]
        return {each.root for each in every}

    def holds(self, tensor: Tensor) -> bool:
        """Whether this very tensor can be reached."""
        held = self._tensors.get(id(tensor))
        return held is not None and held.tensor is tensor

    def changed(self) -> set[Hashable]:
        """The roots below which something is not what it was. An iterator below a root counts as changed."""
        moved = {held.root for held in self._held if held.changed()}
        written = {held.root for held in self._tensors.values() if _is_written(held)}
        return moved | written | {each.root for each in self._iterators}

    def check_generators(self) -> None:
        """Raise CannotRestore where a generator has moved on: it cannot be wound back."""
        for each in self._iterators:
            if isinstance(each.iterator, GeneratorType) and position(each.iterator) != each.kept:
                raise CannotRestore(each.root, "went on with a generator, which cannot be wound back")

    @contextmanager
    def restored(self, *, spare: bool = False) -> Iterator[dict[int, Any]]:
        """Inside, all is as it was; afterwards as it is now.

        Gives what stands in for values that cannot be put back in place, by the ids of those: iterators, and tensors
        that were written or, with `spare`, are not to be written inside. Raises CannotRestore where there is no copy
        of such a tensor.
        """
        stand_ins = {
            id(each.iterator): fork(each.kept)
            for each in self._iterators
            if not isinstance(each.iterator, GeneratorType)
        }
        for key, kept in self._tensors.items():
            written = _is_written(kept)
            if written or (spare and kept.copy is not None):
                if kept.copy is None:
                    raise CannotRestore(kept.root, "holds a tensor that was modified in place after the forward")
                stand_ins[key] = copy_of(kept.copy)
        now = [(held, held.kind.read(held.value)) for held in self._held]
        try:
            for held in self._held:
                held.kind.put(held.value, [(key, substituted(item, stand_ins)) for key, item in held.pairs])
            yield stand_ins
        finally:
            for held, pairs in now:
                held.kind.put(held.value, pairs)

    def put_back(self) -> None:
        """Let the objects hold what they held, from now on."""
        for held in self._held:
            held.kind.put(held.value, held.pairs)

    def _follow(self, root: Hashable, value: Any, seen: set[int], *, copied: bool) -> None:
        pending, followed = [value], 0
        while pending and followed < _MOST_OBJECTS:
            value = pending.pop()
            kind = type(value)
            if kind in PLAIN or isinstance(value, type) or id(value) in seen:
                continue
            seen.add(id(value))
            followed += 1
            if isinstance(value, Tensor):
                self._tensors[id(value)] = _held_tensor(root, value, copied=copied)
            elif isinstance(value, GeneratorType):
                self._iterators.append(_HeldIterator(root, value, position(value)))
            elif is_plain_iterator(value):
                try:
                    self._iterators.append(_HeldIterator(root, value, fork(value)))
                except TypeError:  # the self-check tells where what it yields matters
                    pending += generators_in(value)
            else:
                pending += _inside_unchanging(value)
                for mutable in kinds_of(kind):  # type: ignore[arg-type]  # a class is hashable
                    pairs = mutable.read(value)
                    items = [item for _, item in pairs] if mutable.container else []
                    pending += items
                    uncut = any(isinstance(item, Tensor) and item.grad_fn is not None for item in items)
                    kept = [(key, self._without_graph(root, item)) for key, item in pairs] if uncut else pairs
                    self._held.append(_Held(root, value, mutable, kept, [id(item) for item in items]))

    def _without_graph(self, root: Hashable, item: Any) -> Any:
        if not isinstance(item, Tensor) or item.grad_fn is None:
            return item
        return self.cut.setdefault(id(item), (root, without_graph(item)))[1]


def substituted(value: Any, stand_ins: Mapping[int, Any]) -> Any:
    """A value with what stands in for it, or for what it holds if it is a tuple."""
    if not stand_ins:
        return value
    if type(value) is tuple:
        members = [substituted(item, stand_ins) for item in value]
        return value if all(map(is_, members, value)) else tuple(members)
    return stand_ins.get(id(value), value)


def without_graph(tensor: Tensor) -> Tensor:
    """A tensor like this one that has no graph, and still requires gradient: operators save the same for it."""
    with unseen_for(tensor):
        return tensor.detach().requires_grad_()


def _held_tensor(root: Hashable, tensor: Tensor, *, copied: bool) -> _HeldTensor:
    if tensor.grad_fn is not None:  # it shares the count of writes
        return _HeldTensor(root, tensor.detach(), version(tensor), None)
    if tensor.requires_grad or not is_plain(tensor):
        return _HeldTensor(root, tensor, version(tensor), None)
    copied = copied or tensor.numel() <= SMALL
    return _HeldTensor(root, tensor, version(tensor), copy_of(tensor) if copied else None)


def _is_written(held: _HeldTensor) -> bool:
    if version(held.tensor) != held.version:
        return True
    return held.copy is not None and held.copy.device.type == "cpu" and not same_bits(held.tensor, held.copy)


def _inside_unchanging(value: Any) -> Iterable[Any]:
    """What values hold that cannot be written themselves, and yet lead to others that can."""
    if isinstance(value, (tuple, frozenset)):
        return value
    if isinstance(value, MappingProxyType):
        return value.values()
    if isinstance(value, partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, MethodType):
        return (value.__self__,)
    if isinstance(value, FunctionType):
        return value.__closure__ or ()
    return ()


def _equal(ours: Any, theirs: Any) -> bool:
    """Whether two states are equal, arrays in them element for element."""
    if isinstance(ours, Tensor):
        return same_bits(ours, theirs)
    if hasattr(ours, "tobytes"):
        return (
            bool(ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes())
            if hasattr(ours, "shape")
            else bool(ours.tobytes() == theirs.tobytes())
        )
    if isinstance(ours, Mapping):
        return ours.keys() == theirs.keys() and all(_equal(ours[key], theirs[key]) for key in ours)
    return bool(ours == theirs)
