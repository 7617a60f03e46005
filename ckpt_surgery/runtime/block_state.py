"""What a block's forward leaves behind on its own modules, so that a recompute starts and ends where it should.

That is buffers that are written (running statistics, power iteration) and attributes that are set. Watching one call
shows which they are; from then on only those are looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cache
from operator import is_
from typing import Any

from torch import Tensor, nn

from ckpt_surgery.runtime.containers import identities, tensors
from ckpt_surgery.runtime.tensors import same_bits, version

_INTERNAL = frozenset({*vars(nn.Module()), "forward", "_gradient_checkpointing_func", "_old_forward"})

Key = tuple[nn.Module, str]
"""A module of a block, and the name of a buffer or an attribute of it."""

Snapshot = tuple[nn.Module, dict[str, Any]]
"""A module, and a copy of its attributes."""

_CONTAINERS = (dict, list, set, deque)
_SMALL = 4096  # elements


def modules_of(block: nn.Module) -> list[nn.Module]:
    """The block and all modules in it; one that has several places comes more than once."""
    modules = [block]
    for module in modules:  # grows on the way
        modules += [part for part in module._modules.values() if part is not None]
    return modules


@cache
def sets_nothing(kind: type) -> bool:
    """Whether the forward of a class sets no attribute: those of torch's own layers do not."""
    return kind.__module__.startswith("torch.nn.modules.")


class _Absent:
    """Stands in for an attribute that is not there."""


@dataclass(frozen=True, slots=True)
class _Before:
    """A buffer or attribute before a call: the object itself, and a copy that the call cannot change."""

    value: Any
    copy: Any
    version: int = 0


Entry = dict[Key, _Before]
"""What is on the modules of a block when a call begins."""


class BlockState:
    """The state that one block writes. `written` grows with every call that writes something new."""

    def __init__(self, block: nn.Module) -> None:
        self._block = block
        self.written: set[Key] = set()
        self.constant: set[Key] = set()
        """The written attributes that hold no tensor with gradient, such as tables that are made once."""
        self.traced = False
        """Whether `constant` is known."""
        self._containers: set[Key] = set()  # attributes that can be written without being set
        self._small: set[Key] = set()  # buffers of which a copy costs next to nothing
        self._holders: list[nn.Module] = []
        self._modes: list[bool] | None = None

    @property
    def known(self) -> bool:
        """Whether a call was watched with all modules that hold buffers in their present training modes.

        The modes matter because statistics can be frozen.
        """
        return self._modes is not None and self._modes == [holder.training for holder in self._holders]

    def entry(self, *, everything: bool, containers: bool = False) -> Entry:
        """What is there before a call: `everything`, or what is or may be written, with or without containers."""
        keys = self.written | self._small
        if containers:
            keys |= self._containers
        if everything:
            for module in modules_of(self._block):
                keys |= {(module, name) for name in module._buffers} | _attributes(module)
        return {key: _before(key) for key in keys}

    def copies(self, entry: Entry) -> dict[Key, Any]:
        """The copies of what is written, from the entry of a call that is over: all that a recompute needs of it."""
        for key in self._small - self.written:  # one may be written for the first time after the call watched
            before, now = entry.get(key), _now(key)
            if before is not None and (before.value is not now or before.version != version(now)):
                self.written.add(key)
        return {key: before.copy for key, before in entry.items() if key in self.written}

    def cut(self, entry: Entry) -> dict[Key, Tensor]:
        """The copies of the tensors that had a graph before the call. They have none: no gradient reaches it."""
        return {
            key: before.copy
            for key, before in entry.items()
            if key in self.written and isinstance(before.value, Tensor) and before.value.grad_fn is not None
        }

    def learn_more(self, entry: Entry, snapshots: Iterable[Snapshot]) -> set[Key]:
        """What the call that began with `entry`, containers among it, and `snapshots` has written.

        Adds it to `written`, and to `entry` where it was missing.
        """
        keys = (self.written | self._containers) & entry.keys()
        written = {key for key in keys if _differs(entry[key], _now(key))}
        for module, attributes in snapshots:
            now = vars(module)
            if len(now) == len(attributes) and all(map(is_, now.values(), attributes.values())):
                continue
            for name in (now.keys() | attributes.keys()) - _INTERNAL:
                value = attributes.get(name, _Absent)
                if now.get(name, _Absent) is not value:
                    written.add((module, name))
                    entry.setdefault((module, name), _Before(value, _copy(value)))
        self.written |= written
        return written

    def learn(self, entry: Entry) -> set[Key]:
        """What the call that began with `entry`, all attributes among it, has written.

        Adds it to `written`, and to `entry` where it was missing.
        """
        keys = entry.keys() | {key for module in modules_of(self._block) for key in _attributes(module)}
        written = {key for key in keys if _differs(entry.get(key), _now(key))}
        entry.update({key: _Before(_Absent, _Absent) for key in written - entry.keys()})
        self.written |= written
        self._containers = {key for key in keys if isinstance(_now(key), _CONTAINERS)}
        self._small = {(m, n) for m, n in keys if (b := m._buffers.get(n)) is not None and b.numel() <= _SMALL}
        self._holders = [module for module in self._block.modules() if module._buffers]
        self._modes = [holder.training for holder in self._holders]
        return written

    @contextmanager
    def as_before(self, copies: Mapping[Key, Any]) -> Iterator[None]:
        """A call inside sees and writes the state of `copies`; afterwards the state is as it is now."""
        now = [(key, _now(key)) for key in copies]
        for key, value in copies.items():
            _put(key, _copy(value))
        try:
            yield
        finally:
            for key, value in now:
                _put(key, value)


def _attributes(module: nn.Module) -> set[Key]:
    return {(module, name) for name in vars(module) if name not in _INTERNAL}


def held_tensors(keys: Iterable[Key]) -> dict[tuple[Any, ...], Tensor]:
    """The tensors in attributes, each under its key and its number there; buffers are left out."""
    return {
        (*key, number): tensor
        for key in keys
        if key[1] not in key[0]._buffers
        for number, tensor in enumerate(tensors(_now(key)))
    }


def _home(key: Key) -> dict[str, Any]:
    module, name = key
    return module._buffers if name in module._buffers else vars(module)


def _now(key: Key) -> Any:
    return _home(key).get(key[1], _Absent)


def _put(key: Key, value: Any) -> None:
    if value is _Absent:
        _home(key).pop(key[1], None)
    else:
        _home(key)[key[1]] = value


def _before(key: Key) -> _Before:
    value = _now(key)
    return _Before(value, _copy(value), version(value) if isinstance(value, Tensor) else 0)


def _copy(value: Any) -> Any:
    """A copy that is not written together with the value. Tensors with gradient are not written in place.

    A tensor loses its graph, for that of the last step would hold on to the one before it, and so on; it still
    requires gradient, so that operators save the same tensors for the backward.
    """
    if isinstance(value, Tensor):
        if value.grad_fn is not None:
            return value.detach().requires_grad_()
        return value if value.requires_grad else value.clone()
    return copy(value) if isinstance(value, _CONTAINERS) else value


def _differs(before: _Before | None, now: Any) -> bool:
    if before is None or before.value is not now:
        return True
    if isinstance(now, Tensor) and before.copy is not now:  # batch norm writes without a new version
        return not same_bits(before.copy, now)
    return isinstance(now, _CONTAINERS) and identities(now) != identities(before.copy)
