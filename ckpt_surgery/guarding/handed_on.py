"""Tensors that a block hands on to others in containers among its arguments, such as a shared dictionary."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

from ckpt_surgery.measure.model_hook import ModelHook
from ckpt_surgery.runtime.checkpoint.call_arguments import Arguments
from ckpt_surgery.runtime.tools.containers import Keys, keyed_tensors, put_at

_DIRECT = 2
"""The length of the path to an argument: positional or by name, and its place or name."""


class HandedOnTensors:
    """Watches tensors with a graph that one call of a block puts into containers among its `arguments`.

    Made before the call; `note` follows it. `gradients` are those that reach what was handed on, and `nodes` where its
    graph begins. With `untold`, gradients may reach the block through something that could not be watched.
    """

    def __init__(self, arguments: Arguments) -> None:
        self.gradients: dict[Keys, Tensor] = {}
        self.nodes: list[Node] = []
        self.untold = False
        self._before = _contained(arguments)

    def note(self, arguments: Arguments, *, watch: bool) -> None:
        """Note which tensors are in the containers now; to `watch` them, replace the new ones by views."""
        before, self._before = self._before, {}
        left = {path: tensor for path, tensor in _contained(arguments).items() if tensor.requires_grad}
        new = {path: tensor for path, tensor in left.items() if tensor is not before.get(path)}
        views = {path: watched_view(tensor, self.gradients, path) for path, tensor in new.items()} if watch else {}
        for path, view in views.items():
            put_at(arguments, path, view)
        now = _contained(arguments) if new else {}
        self.untold = any(path not in views or now.get(path) is not views[path] for path in new)
        self.nodes += [get_gradient_edge(view).node for view in views.values()]

    def reached_in(self, arguments: Arguments) -> list[tuple[Tensor, Tensor]]:
        """Pair what another call left in containers with the gradients that reached the first call's.

        Where it left nothing with a graph, `untold` is set.
        """
        left = _contained(arguments)
        self.untold |= any(path not in left or not left[path].requires_grad for path in self.gradients)
        return [(left[path], gradient) for path, gradient in self.gradients.items() if path in left]


def watched_view(tensor: Tensor, gradients: dict[Any, Tensor], place: Any) -> Tensor:
    """Return a view whose first gradient is kept under `place`, without what the block itself adds."""
    view = tensor.view_as(tensor)
    view.register_hook(ModelHook(partial(_note_gradient, gradients, place)))  # type: ignore[no-untyped-call]
    return view


def _note_gradient(gradients: dict[Any, Tensor], place: Any, gradient: Tensor | None) -> None:
    if gradient is not None:
        gradients.setdefault(place, gradient.detach())


def _contained(arguments: Arguments) -> dict[Keys, Tensor]:
    """Return the tensors in containers among a call's arguments, by their paths."""
    return {path: tensor for path, tensor in keyed_tensors(arguments) if len(path) > _DIRECT}
