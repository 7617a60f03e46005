"""Watch the graph of one block call: what it adds to gradients, what it hands on, what of it a backward runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from ckpt_surgery.measure.model_hook import ModelHook
from ckpt_surgery.runtime.checkpoint.call_arguments import Arguments
from ckpt_surgery.runtime.tools.containers import Keys, keyed_tensors, put_at
from ckpt_surgery.torch_names import will_execute

Edge = tuple[Node | None, int]
_DIRECT = 2
"""The length of the path to an argument itself: positional or by name, and its place or name."""


class CallGraph:
    """Collects what a call adds to gradients of its arguments and of parameters, to which others may add too.

    Call `begin` before the call, and `watch` after it. Nothing is put between those tensors and the block, so that all
    that uses them adds to their gradients in the same order as without the watch: sums are equal bit for bit. `nodes`
    are those of the arguments, by name, and `made` those of all that the call returns or hands on. With `reentrant`,
    the recompute of a checkpoint makes gradients of its own, which the graph does not show.
    """

    def __init__(self) -> None:
        self.begun = self.watched = self.reentrant = False
        self.nodes: dict[str, Node] = {}
        self.made: list[Node] = []
        self.gradients: dict[str, Tensor] = {}
        self.of_parameters: dict[str, Tensor] = {}
        self._names: dict[Edge, tuple[dict[str, Tensor], str]] = {}
        self._first = 0  # the sequence number of the call's first node
        self._handles: list[RemovableHandle] = []

    def begin(
        self, given: Iterable[tuple[str, Tensor]], parameters: Mapping[str, nn.Parameter], *, reentrant: bool
    ) -> None:
        """Note the nodes of the parameters, and of the named tensors `given` to the call. Gradients must be on."""
        trained = ((self.of_parameters, name, p) for name, p in parameters.items() if p.requires_grad)
        for home, name, tensor in (*trained, *((self.gradients, *each) for each in given)):
            edge = get_gradient_edge(tensor)
            self._names[edge.node, edge.output_nr] = home, name
            if home is self.gradients:
                self.nodes[name] = edge.node
        # later nodes of a thread have larger numbers, and leaves, which lead to nothing, the largest
        self._first = get_gradient_edge(torch.empty((), requires_grad=True).view(1)).node._sequence_nr()
        self.begun, self.reentrant = True, reentrant

    def watch(self, made: list[Node]) -> None:
        """Add up each gradient that flows from what the call has `made` to the named tensors, until `release`."""
        self.made, self.watched = made, True
        for node in _nodes_behind(made, self._first, self._names):
            self.reentrant |= "checkpoint" in node.name().lower()  # that of torch, DeepSpeed, FairScale, Unsloth
            edges = enumerate(node.next_functions)
            names = {place: name for place, edge in edges if (name := self._names.get(edge)) is not None}
            if names:
                self._handles.append(node.register_hook(ModelHook(partial(self._add_each, names))))

    @staticmethod
    def _add_each(names: Mapping[int, tuple[dict[str, Tensor], str]], inputs: Sequence[Tensor | None], _: Any) -> None:
        for place, (home, name) in names.items():
            add_gradient(home, name, inputs[place])

    def is_used_besides(self, results: Iterable[Node]) -> bool:
        """Tell whether the graph of the model's `results` uses that of the call other than through `made`."""
        inside = {node for node in _nodes_behind(self.made, self._first, self._names) if node.next_functions}
        others = (node for node in _nodes_behind(results) if node not in inside)
        return any(edge[0] in inside and edge[0] not in self.made for node in others for edge in node.next_functions)

    def release(self) -> None:
        """Drop the graph and the hooks on it."""
        for handle in self._handles:
            handle.remove()
        for held in (self._handles, self.made, self.nodes, self._names, self.of_parameters):
            held.clear()


def add_gradient(gradients: dict[str, Tensor], name: str, gradient: Tensor | None) -> None:
    """Add a gradient to the one stored under `name`; ignore None, which custom functions may give."""
    if gradient is None:
        return
    before = gradients.get(name)
    gradient = gradient.detach()
    gradients[name] = gradient.clone() if before is None else before + gradient


def not_asked_for(nodes: Mapping[str, Node], made: Iterable[Node]) -> set[str]:
    """Name those of `nodes` that the graph of `made` leads to but this backward does not run.

    `torch.autograd.grad(loss, inputs)` asks for only some gradients. Call this before the backward has ended.
    """
    graph = set(_nodes_behind(made))
    passed_by = set()
    for name, node in nodes.items():
        with suppress(RuntimeError):  # the gradient of a leaf that was asked for
            if node in graph and not will_execute(node):
                passed_by.add(name)
    return passed_by


def _nodes_behind(made: Iterable[Node], first: int = 0, ends: Collection[Edge] = ()) -> Iterator[Node]:
    """Yield the nodes of a graph, up to nodes older than `first` and to edges among `ends`."""
    seen: set[Node] = set()
    waiting = list(made)
    while waiting:
        node = waiting.pop()
        if node not in seen and node._sequence_nr() >= first:
            seen.add(node)
            yield node
            waiting += [edge[0] for edge in node.next_functions if edge[0] is not None and edge not in ends]


class HandedOnTensors:
    """Watches tensors with a graph that one call of a block puts into containers among its `arguments`.

    It is made before the call, and `note` called after it. `gradients` are those that reach such tensors, and `nodes`
    are theirs. With `unwatched`, gradients may reach the block through something that could not be watched.
    """

    def __init__(self, arguments: Arguments) -> None:
        self.gradients: dict[Keys, Tensor] = {}
        self.nodes: list[Node] = []
        self.unwatched = False
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
        self.unwatched = any(path not in views or now.get(path) is not views[path] for path in new)
        self.nodes += [get_gradient_edge(view).node for view in views.values()]

    def reached_in(self, arguments: Arguments) -> list[tuple[Tensor, Tensor]]:
        """Pair what another call left in containers with the gradients that reached the first call's.

        If it left nothing with a graph, `unwatched` is set.
        """
        left = _contained(arguments)
        self.unwatched |= any(path not in left or not left[path].requires_grad for path in self.gradients)
        return [(left[path], gradient) for path, gradient in self.gradients.items() if path in left]


def watched_view(tensor: Tensor, gradients: dict[Any, Tensor], place: Any) -> Tensor:
    """Return a view that keeps its first gradient under `place`, to which uses inside the block do not add."""
    view = tensor.view_as(tensor)
    view.register_hook(ModelHook(partial(_note_first, gradients, place)))  # type: ignore[no-untyped-call]
    return view


def _note_first(gradients: dict[Any, Tensor], place: Any, gradient: Tensor | None) -> None:
    if gradient is not None:
        gradients.setdefault(place, gradient.detach())


def _contained(arguments: Arguments) -> dict[Keys, Tensor]:
    """Return the tensors in containers among a call's arguments, by their paths."""
    return {path: tensor for path, tensor in keyed_tensors(arguments) if len(path) > _DIRECT}
