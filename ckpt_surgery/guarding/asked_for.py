"""Which gradients the backward that ends was asked for: `torch.autograd.grad(loss, inputs)` makes no others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch.autograd.graph import Node


def not_asked_for(nodes: Mapping[str, Node], made: Iterable[Node]) -> set[str]:
    """Those of `nodes`, by name, that the graph of `made` leads to and that this backward passes by.

    To be called before the backward has ended.
    """
    graph: set[Node] = set()
    waiting = list(made)
    while waiting:
        node = waiting.pop()
        if node not in graph:
            graph.add(node)
            waiting += [before for before, _ in node.next_functions if before is not None]
    return {name for name, node in nodes.items() if node in graph and not _runs(node)}


def _runs(node: Node) -> bool:
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # the gradient of a leaf that was asked for
        return True
