"""Find names that a function looks up late, and which of them are rebound by a loop or a later statement."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ckpt_surgery.codemods.facts.argument_names import is_past_state
from ckpt_surgery.codemods.facts.syntax import dotted, statements_below, walk

_SAME_FOR_ALL = frozenset({"shape", "dtype", "device", "ndim", "size"})
"""Attributes that are normally the same for all blocks: a name that is rebound to one keeps its value."""


def rebound_by_loops(call: ast.Call, statement: ast.stmt, around: Sequence[ast.AST]) -> set[str]:
    """Return the names that have another value after the loops and comprehensions around a call.

    They are the loop variables, and what is computed from these. A loop that itself runs the backward pass rebinds
    nothing before the recompute.
    """
    loops = [loop for loop in around if isinstance(loop, ast.For | ast.While)]
    suite = _suite_of(statement, loops[-1]) if loops else []
    last = suite[-1] if suite else None
    if isinstance(last, ast.Return | ast.Raise):
        loops = []
    elif isinstance(last, ast.Break):
        loops.pop()
    loops = [loop for loop in loops if not _runs_backward(loop)]
    targets = [loop.target for loop in loops if isinstance(loop, ast.For)]
    targets += [each.target for node in around if isinstance(node, ast.ListComp) for each in node.generators]
    names = set[str]().union(*map(_stored, targets))
    inside = [node for loop in loops[:1] for node in walk(loop)]
    assigned = [node for node in inside if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)]
    count = -1
    while len(names) > count:
        count = len(names)
        for node in assigned:
            if node.value is None or _is_same_for_all(node.value):
                continue
            parts = walk(node.value)
            read = {part.id for part in parts if isinstance(part, ast.Name)}
            if isinstance(node, ast.AugAssign) or call in parts or read & names:
                names |= _stored(node)
    return names


def rebound_later(names: set[str], statement: ast.stmt, function: ast.FunctionDef) -> set[str]:
    """Return the names of a function that a statement, or a later one of its suite, gives another value."""
    suite = _suite_of(statement, function) if names else []
    later = suite[suite.index(statement) :] if suite else []
    assigned = [node for node in later if isinstance(node, ast.Assign | ast.AugAssign)]
    values = [node for node in assigned if not isinstance(node.value, ast.Constant)]
    names = names & set[str]().union(*(_stored(node) for node in values if not _is_same_for_all(node.value)))
    return set() if names and _runs_backward(function) else names


def _suite_of(statement: ast.stmt, node: ast.AST) -> list[ast.stmt]:
    """Return the suite inside a node that a statement belongs to."""
    holders = (node, *statements_below(node))
    suites = (getattr(inner, part, None) for inner in holders for part in ("body", "orelse"))
    return next((suite for suite in suites if isinstance(suite, list) and statement in suite), [])


def _runs_backward(node: ast.AST) -> bool:
    """Tell whether a loop or function may run the backward pass itself, or lets its caller do so by yielding."""
    return any(
        isinstance(inner, ast.Yield | ast.YieldFrom)
        or (isinstance(inner, ast.Attribute) and (inner.attr == "backward" or dotted(inner).endswith("autograd.grad")))
        for inner in walk(node)
    )


def _is_same_for_all(value: ast.expr) -> bool:
    """Tell whether a value is a size or type of a tensor, as in `x.size(0)` and `x.shape[:2]`."""
    if isinstance(value, ast.Tuple):
        return all(map(_is_same_for_all, value.elts))
    while isinstance(value, ast.Subscript | ast.Call):
        value = value.func if isinstance(value, ast.Call) else value.value
    return isinstance(value, ast.Attribute) and value.attr in _SAME_FOR_ALL


def parameters_of(arguments: ast.arguments) -> set[str]:
    """Return the names of all parameters."""
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return {argument.arg for argument in every if argument}


def nodes_of(function: ast.FunctionDef | ast.Lambda) -> list[ast.AST]:
    """Return every node of a function's body."""
    body = function.body if isinstance(function, ast.FunctionDef) else [function.body]
    return [node for part in body for node in walk(part)]


def bound_in(function: ast.FunctionDef | ast.Lambda) -> set[str]:
    """Return the names that a function binds itself, or a function inside it."""
    own = parameters_of(function.args)
    for node in nodes_of(function):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            own |= parameters_of(node.args) | {getattr(node, "name", "")}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
    return own


def read_late(maker: ast.FunctionDef) -> set[str]:
    """Return the names from outside a function that the functions it returns look up when they run.

    Past state is left out: in training it is None for every block.
    """
    nodes = nodes_of(maker)
    returned = [node.value for node in nodes if isinstance(node, ast.Return)]
    names = {value.id for value in returned if isinstance(value, ast.Name)}
    functions: list[ast.FunctionDef | ast.Lambda] = []
    functions += [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name in names]
    functions += [value for value in returned if isinstance(value, ast.Lambda)]
    read = [node for function in functions for node in nodes_of(function) if isinstance(node, ast.Name)]
    loaded = {node.id for node in read if isinstance(node.ctx, ast.Load) and not is_past_state(node.id)}
    return loaded - bound_in(maker)


def _stored(node: ast.AST) -> set[str]:
    nodes = walk(node)
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
