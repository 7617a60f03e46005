"""Read the tests of inline branches, and the guards in them: `if use_cache: use_cache = False`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ckpt_surgery.codemods.facts.syntax import Span, walk

_TRAINING = ("self.training", "training", "self._requires_grad", "torch.is_grad_enabled()")
"""Terms of a test that are true in every step with a backward pass."""


def other_conditions(test: ast.expr) -> Iterator[str]:
    """Yield the terms of a test that are not about checkpointing or training."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for value in test.values:
            yield from other_conditions(value)
        return
    text = ast.unparse(test)
    if isinstance(test, ast.BoolOp | ast.UnaryOp | ast.Compare) or (
        "checkpoint" not in text and text not in _TRAINING
    ):
        yield text


def guarded_name(statement: ast.stmt) -> str | None:
    """Return the name that a statement switches off, as in `if use_cache: use_cache = False`; None for any other."""
    if isinstance(statement, ast.If) and not statement.orelse:
        tested = {node.id for node in walk(statement.test) if isinstance(node, ast.Name)}
        for inner in statement.body:
            match inner:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=False | None)) if name in tested:
                    return name
    return None


def is_read_after(function: ast.FunctionDef, branch: Span, name: str) -> bool:
    """Tell whether `name` is read after a branch, unless a guard before the branch has switched it off already."""
    nodes = walk(function)
    before = [node for node in nodes if isinstance(node, ast.If) and node.lineno < branch.line]
    guarding = [node for node in before if "checkpoint" in ast.unparse(node.test)]
    if any(guarded_name(inner) == name for node in guarding for inner in (node, *node.body)):
        return False
    names = (node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    return any(node.id == name and node.lineno > branch.end_line for node in names)
