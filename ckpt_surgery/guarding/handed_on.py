"""Tensors that a block leaves for others in containers among its arguments: in a shared dictionary, or a list."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import is_dataclass
from functools import partial
from typing import Any

from torch import Tensor

from ckpt_surgery.runtime.containers import Path, items, placed_tensors

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def contained(arguments: Arguments) -> dict[Path, Tensor]:
    """The tensors in containers among the arguments of a call, by their places; not those that are arguments."""
    return {path: tensor for path, tensor in placed_tensors(arguments) if len(path) > _DIRECT}


class HandedOnTensors:
    """What one call of a block puts into containers among its `arguments`. Made before the call; `note` follows it.

    `gradients` are those that reach what was handed on with a graph, and `without_graph` the places of what was handed
    on without one. With `untold`, gradients may reach the block through something that could not be watched.
    """

    def __init__(self, arguments: Arguments) -> None:
        self.gradients: dict[Path, Tensor] = {}
        self.without_graph: set[Path] = set()
        self.untold = False
        self._before = contained(arguments)

    def note(self, arguments: Arguments, *, watch: bool) -> None:
        """Note what is there now; to `watch` it, put views in the places of what has a graph.

        The gradient of a view is none that the block itself adds to.
        """
        before, self._before = self._before, {}
        new = {path: tensor for path, tensor in contained(arguments).items() if tensor is not before.get(path)}
        self.without_graph = {path for path, tensor in new.items() if not tensor.requires_grad}
        views = {path: tensor.view_as(tensor) for path, tensor in new.items() if tensor.requires_grad and watch}
        if views:
            _put(arguments, (), views)
        now = contained(arguments)
        for path in new.keys() - self.without_graph:
            if path in views and now.get(path) is views[path]:
                views[path].register_hook(partial(self._reached, path))  # type: ignore[no-untyped-call]
            else:
                self.untold = True

    def reached_in(self, left: Mapping[Path, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """What another call has `left` where gradients have reached the first one, each with the gradient.

        Where that has left nothing with a graph, what reaches the block is untold.
        """
        self.untold |= any(path not in left or not left[path].requires_grad for path in self.gradients)
        return [(left[path], self.gradients[path]) for path in self.gradients if path in left]

    def is_cut(self, left: Mapping[Path, Tensor]) -> bool:
        """Whether another call has `left` something with a graph where the first one left it without."""
        return any(path in left and left[path].requires_grad for path in self.without_graph)

    def _reached(self, path: Path, gradient: Tensor | None) -> None:
        if gradient is not None:
            self.gradients.setdefault(path, gradient.detach())


_DIRECT = 2
"""The length of the path to an argument: positional or by name, and its place or name."""


def _put(value: Any, path: Path, new: Mapping[Path, Tensor]) -> Any:
    """The value with the tensors of `new` in their places: a container that can be written into is, others are made.

    Where neither can be done, those in it are left as they are.
    """
    if isinstance(value, Tensor):
        return new.get(path, value)
    changed = {}
    for place, item in items(value):
        if any(other[: len(path) + 1] == (*path, place) for other in new):
            replaced = _put(item, (*path, place), new)
            if replaced is not item:
                changed[place] = replaced
    if not changed:
        return value
    if isinstance(value, tuple):
        members = [changed.get(place, item) for place, item in enumerate(value)]
        return type(value)(*members) if hasattr(value, "_fields") else type(value)(members)
    if isinstance(value, (list, MutableMapping)):
        for place, item in changed.items():
            value[place] = item
    elif is_dataclass(value):
        for place, item in changed.items():
            object.__setattr__(value, place, item)
    return value
