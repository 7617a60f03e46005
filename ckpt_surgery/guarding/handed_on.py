"""Tensors that a block hands on: those that it leaves for others in containers among its arguments, as in a shared
dictionary, and those that have lost their graph on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import is_dataclass
from functools import partial
from typing import Any
from weakref import ref

from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from ckpt_surgery.runtime.checkpoint.call_arguments import Arguments
from ckpt_surgery.runtime.tools.containers import Path, is_differentiable, items, placed_tensors, tensors
from ckpt_surgery.runtime.tools.model_hook import ModelHook


def contained(arguments: Arguments) -> dict[Path, Tensor]:
    """The tensors in containers among the arguments of a call, by their places; not those that are arguments."""
    return {path: tensor for path, tensor in placed_tensors(arguments) if len(path) > _DIRECT}


class HandedOnTensors:
    """What one call of a block puts into containers among its `arguments`. Made before the call; `note` follows it.

    `gradients` are those that reach what was handed on with a graph, and `without_graph` the places of what was handed
    on without one. `nodes` are those of the former. With `untold`, gradients may reach the block through
    something that could not be watched.
    """

    def __init__(self, arguments: Arguments) -> None:
        self.gradients: dict[Path, Tensor] = {}
        self.without_graph: set[Path] = set()
        self.nodes: list[Node] = []
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
            put(arguments, (), views)
            self.nodes = [get_gradient_edge(view).node for view in views.values()]
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

    def cut_in(self, left: Mapping[Path, Tensor]) -> list[Tensor]:
        """What another call has `left` with a graph where the first one left it without."""
        return [left[path] for path in self.without_graph if path in left and left[path].requires_grad]

    def _reached(self, path: Path, gradient: Tensor | None) -> None:
        if gradient is not None:
            self.gradients.setdefault(path, gradient.detach())


class CutTensors:
    """In one step, the tensors without a graph that `blocks` hand on, in containers or among what they return.

    While `running` says so, a forward is part of the step.
    """

    def __init__(self, blocks: Mapping[str, nn.Module], running: Callable[[], bool]) -> None:
        self._running = running
        self._tensors: dict[int, tuple[str, ref[Tensor]]] = {}
        self._before: dict[str, dict[Path, Tensor]] = {}
        self.handles: list[RemovableHandle] = []
        for name, block in blocks.items():
            self.handles += [
                block.register_forward_pre_hook(ModelHook(partial(self._enter, name)), with_kwargs=True),
                block.register_forward_hook(ModelHook(partial(self._leave, name)), prepend=True, with_kwargs=True),
            ]

    def __bool__(self) -> bool:
        return bool(self._tensors)

    def maker(self, tensor: Tensor) -> str | None:
        """The block that handed on this very tensor without a graph."""
        name, noted = self._tensors.get(id(tensor), (None, None))
        return name if noted is not None and noted() is tensor else None

    def _enter(self, name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._running():
            self._before[name] = contained((args, kwargs))

    def _leave(self, name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        before = self._before.pop(name, None)
        if before is None:
            return
        left = [tensor for path, tensor in contained((args, kwargs)).items() if tensor is not before.get(path)]
        for tensor in (*left, *tensors(output)):
            if not tensor.requires_grad and is_differentiable(tensor):
                self._tensors[id(tensor)] = name, ref(tensor)


_DIRECT = 2
"""The length of the path to an argument: positional or by name, and its place or name."""


def put(value: Any, path: Path, new: Mapping[Path, Tensor]) -> Any:
    """The value with the tensors of `new` in their places: a container that can be written into is, others are made.

    Where neither can be done, those in it are left as they are.
    """
    if isinstance(value, Tensor):
        return new.get(path, value)
    changed = {}
    for place, item in items(value):
        if any(other[: len(path) + 1] == (*path, place) for other in new):
            replaced = put(item, (*path, place), new)
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
