"""What one call of a block adds to the gradients of the tensors that it was given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

Add = Callable[[str, Tensor | None], None]


class Contributions:
    """Watches the graph of a call for what it adds to the gradients of tensors `given` to it, with a graph and a name.

    Nothing is put between those tensors and the block: what else uses them adds to their gradients in the order that
    it has without this, so that sums are equal to the bit. Made before the call, with gradients on; `watch` follows.
    `nodes` are those that the gradients flow to, one of each name.
    """

    def __init__(self, given: Iterable[tuple[str, Tensor]]) -> None:
        edges = [(name, get_gradient_edge(tensor)) for name, tensor in given]
        self.nodes: dict[str, Node] = {name: edge.node for name, edge in edges}
        self._names = {(edge.node, edge.output_nr): name for name, edge in edges}
        self._first = _number(get_gradient_edge(torch.empty((), requires_grad=True).view(1)).node)

    def watch(self, made: Iterable[Node], add: Add) -> list[RemovableHandle]:
        """Call `add` with a name and each gradient that flows to its tensors from what the call has `made`."""
        handles = []
        seen: set[Node] = set()
        waiting = list(made)
        while waiting and self._names:
            node = waiting.pop()
            if node in seen or _number(node) < self._first:
                continue
            seen.add(node)
            names = {}
            for place, (before, output) in enumerate(node.next_functions):
                name = self._names.get((before, output)) if before is not None else None
                if name is not None:
                    names[place] = name
                elif before is not None:
                    waiting.append(before)
            if names:
                handles.append(node.register_hook(partial(_hand_on, names, add)))
        return handles


def _hand_on(names: Mapping[int, str], add: Add, inputs: tuple[Tensor | None, ...], _: object) -> None:
    for place, name in names.items():
        add(name, inputs[place])


def _number(node: Node) -> int:
    """Those made later on the same thread have a larger one. Of leaves it is the largest: they lead to nothing."""
    number: int = node._sequence_nr()
    return number
