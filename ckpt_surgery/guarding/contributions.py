"""The graph of one call of a block: what the call adds to the gradients of its arguments, and what its backward runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle


class Contributions:
    """Collect what a call adds to the gradients of tensors `given` to it, with a graph and a name.

    Nothing is put between those tensors and the block: what else uses them adds to their gradients in the order that
    it has without this, so that sums are equal to the bit. Made before the call, with gradients on; `watch` follows.
    `nodes` are those that the gradients flow to, one of each name, and `made` what the graph of the results begins
    with. With `reentrant`, the recompute of a checkpoint makes gradients of its own, which the graph does not show.
    """

    def __init__(self, given: Iterable[tuple[str, Tensor]], *, reentrant: bool) -> None:
        edges = [(name, get_gradient_edge(tensor)) for name, tensor in given]
        self.nodes: dict[str, Node] = {name: edge.node for name, edge in edges}
        self.made: list[Node] = []
        self.gradients: dict[str, Tensor] = {}
        self.reentrant = reentrant
        self.watched = False
        self._names = {(edge.node, edge.output_nr): name for name, edge in edges}
        self._first = _number(get_gradient_edge(torch.empty((), requires_grad=True).view(1)).node)

    def watch(self, made: list[Node]) -> list[RemovableHandle]:
        """Add up each gradient that flows to the tensors from what the call has `made`, until the handles go."""
        self.made, self.watched = made, True
        handles = []
        seen: set[Node] = set()
        waiting = list(made)
        while waiting:
            node = waiting.pop()
            if node in seen or _number(node) < self._first:
                continue
            seen.add(node)
            self.reentrant |= _is_reentrant(node)
            edges = [(self._names.get((node, output)), node) for node, output in node.next_functions]
            waiting += [before for name, before in edges if name is None and before is not None]
            names = {place: name for place, (name, _) in enumerate(edges) if name is not None}
            if names:
                handles.append(node.register_hook(partial(_add_each, self.gradients, names)))
        return handles


def add_gradient(gradients: dict[str, Tensor], name: str, gradient: Tensor | None) -> None:
    """Add up what flows to `name`; custom functions may give None."""
    if gradient is None:
        return
    before = gradients.get(name)
    gradient = gradient.detach()
    gradients[name] = gradient.clone() if before is None else before + gradient


def not_asked_for(nodes: Mapping[str, Node], made: Iterable[Node]) -> set[str]:
    """Return the names of those `nodes` that the graph of `made` leads to and that this backward passes by.

    `torch.autograd.grad(loss, inputs)` asks for some gradients alone. To be called before the backward has ended.
    """
    graph: set[Node] = set()
    waiting = list(made)
    while waiting:
        node = waiting.pop()
        if node not in graph:
            graph.add(node)
            waiting += [before for before, _ in node.next_functions if before is not None]
    return {name for name, node in nodes.items() if node in graph and not _runs(node)}


def _add_each(
    gradients: dict[str, Tensor], names: Mapping[int, str], inputs: tuple[Tensor | None, ...], _: object
) -> None:
    for place, name in names.items():
        add_gradient(gradients, name, inputs[place])


def _is_reentrant(node: Node) -> bool:
    """Tell a reentrant checkpoint by its name: of torch, DeepSpeed, FairScale, Megatron or Unsloth."""
    return "checkpoint" in node.name().lower()


def _number(node: Node) -> int:
    """Return the number of a node: later ones of a thread have larger ones, and leaves, which end there, the largest."""
    number: int = node._sequence_nr()
    return number


def _runs(node: Node) -> bool:
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # the gradient of a leaf that was asked for
        return True
