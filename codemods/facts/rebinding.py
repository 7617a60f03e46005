"""Find the names of a function that loops around a call, or later statements, rebind."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ckpt_surgery.codemods.facts.argument_names import is_past_state
from ckpt_surgery.codemods.facts.syntax import dotted, statements_below, walk

_SAME_FOR_ALL = frozenset({"shape", "dtype", "device", "ndim", "size"})
"""What is the same for all blocks, as a rule: a name that is bound to one again has no other value."""


def rebound_by_loops(call: ast.Call, at: ast.stmt, around: Sequence[ast.AST]) -> set[str]:
    """Return the names that have another value after the loops around a call.

    They are the targets of the loops, and what is made of these.

    A loop that runs the backward pass itself is over before it rebinds anything.
    """
    loops = [loop for loop in around if isinstance(loop, ast.For | ast.While)]
    suite = _suite_of(at, loops[-1]) if loops else []
    last = suite[-1] if suite else None
    if isinstance(last, ast.Return | ast.Raise):
        loops = []
    elif isinstance(last, ast.Break):
        loops.pop()
    loops = [loop for loop in loops if not _is_over(loop)]
    targets = [loop.target for loop in loops if isinstance(loop, ast.For)]
    targets += [head.target for made in around if isinstance(made, ast.ListComp) for head in made.generators]
    names = set[str]().union(*map(_stored, targets))
    inside = [node for loop in loops[:1] for node in walk(loop)]
    assigned = [node for node in inside if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)]
    before = -1
    while len(names) > before:
        before = len(names)
        for statement in assigned:
            if statement.value is None or _is_same_for_all(statement.value):
                continue
            nodes = walk(statement.value)
            read = {node.id for node in nodes if isinstance(node, ast.Name)}
            if isinstance(statement, ast.AugAssign) or call in nodes or read & names:
                names |= _stored(statement)
    return names


def rebound_later(names: set[str], statement: ast.stmt, function: ast.FunctionDef) -> set[str]:
    """Return those of a function's names that a statement, or a later one that surely runs, gives another value."""
    suite = _suite_of(statement, function) if names else []
    later = suite[suite.index(statement) :] if suite else []
    assigned = [node for node in later if isinstance(node, ast.Assign | ast.AugAssign)]
    values = [node for node in assigned if not isinstance(node.value, ast.Constant)]
    names = names & set[str]().union(*(_stored(node) for node in values if not _is_same_for_all(node.value)))
    return set() if names and _is_over(function) else names


def _suite_of(statement: ast.stmt, node: ast.AST) -> list[ast.stmt]:
    """Return the statements that run with one inside a node."""
    holders = (node, *statements_below(node))
    suites = (getattr(inner, part, None) for inner in holders for part in ("body", "orelse"))
    return next((suite for suite in suites if isinstance(suite, list) and statement in suite), [])


def _is_over(loop: ast.AST) -> bool:
    """Tell whether a loop may run the backward pass before it goes on, itself or by whom it yields to."""
    return any(
        isinstance(node, ast.Yield | ast.YieldFrom)
        or (isinstance(node, ast.Attribute) and (node.attr == "backward" or dotted(node).endswith("autograd.grad")))
        for node in walk(loop)
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
    """Return the names that a function, or one inside it, binds itself."""
    own = parameters_of(function.args)
    for node in nodes_of(function):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            own |= parameters_of(node.args) | {getattr(node, "name", "")}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
    return own


def read_late(maker: ast.FunctionDef) -> set[str]:
    """Return the names around a function that the functions it returns look up when they run.

    Past state is left out: in training it is None for each block.
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
