"""The parts of an inline branch: its test, its guards, what its statements are for."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ckpt_surgery.codemods.facts.syntax import statements_below, walk


def conditions(test: ast.expr) -> Iterator[str]:
    """The terms of a test that are about something other than checkpointing and training."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for value in test.values:
            yield from conditions(value)
        return
    text = ast.unparse(test)
    if isinstance(test, ast.BoolOp | ast.UnaryOp | ast.Compare) or (
        "checkpoint" not in text and text not in ("self.training", "training", "self._requires_grad")
    ):
        yield text


def guarded_name(statement: ast.stmt) -> str | None:
    """`if use_cache: warn(...); use_cache = False` is a guard of `use_cache`; None for any other statement."""
    if isinstance(statement, ast.If) and not statement.orelse:
        asked = {node.id for node in walk(statement.test) if isinstance(node, ast.Name)}
        for inner in statement.body:
            match inner:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=False | None)) if name in asked:
                    return name
    return None


def read_later(function: ast.FunctionDef, branch: ast.If, name: str) -> bool:
    """Whether `name` is read after the branch, and no guard before the branch has switched it off already."""
    end = branch.end_lineno or branch.lineno
    read = False
    for node in walk(function):
        if isinstance(node, ast.If) and node.lineno < branch.lineno and "checkpoint" in ast.unparse(node.test):
            if any(guarded_name(inner) == name for inner in (node, *node.body)):
                return False
        elif isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            read = read or node.lineno > end
    return read


def elif_places(function: ast.FunctionDef) -> tuple[dict[tuple[int, int], ast.If], set[tuple[int, int]]]:
    """Every `if` of a function by its place, and the places of those that are written `elif`."""
    branches: dict[tuple[int, int], ast.If] = {}
    elifs: set[tuple[int, int]] = set()
    for node in statements_below(function):
        if isinstance(node, ast.If):
            branches[(node.lineno, node.col_offset)] = node
            match node.orelse:
                case [ast.If() as inner] if inner.col_offset == node.col_offset:
                    elifs.add((inner.lineno, inner.col_offset))
    return branches, elifs
