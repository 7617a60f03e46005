"""A method's text apart from what a repair may change: checkpoint branches and the arguments of block calls."""

from __future__ import annotations

import ast
import copy
import difflib
from collections.abc import Callable, Container

SWITCH = "gradient_checkpointing"
SHOWN = 4


def plain_body(
    function: ast.FunctionDef, calls: Container[tuple[int, int]], is_checkpoint: Callable[[ast.Call], bool]
) -> str:
    """Return the body as if no checkpointing were asked for, arguments left out of the calls at these places.

    `calls` are (line, column). A test on the flag gives way to its other branch; one that guards no
    checkpoint call, such as the one that turns `use_cache` off, is left out: it may stay or go.
    """
    bare = _Bare(calls, is_checkpoint).visit(copy.deepcopy(function))
    return "\n".join(ast.unparse(statement) for statement in bare.body)


def changed_lines(before: str, after: str) -> str:
    """What differs between two bodies, as `- line` and `+ line`, on one line and cut short; "" where nothing does."""
    pairs = difflib.ndiff(before.splitlines(), after.splitlines()) if before != after else ()
    lines = [f"{line[0]} {line[2:].strip()}" for line in pairs if line[0] in "+-"]
    return "; ".join(lines[:SHOWN] + (["..."] if len(lines) > SHOWN else []))


class _Bare(ast.NodeTransformer):
    def __init__(self, calls: Container[tuple[int, int]], is_checkpoint: Callable[[ast.Call], bool]) -> None:
        self.calls = calls
        self.is_checkpoint = is_checkpoint

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        here, there = self._checkpoints(node.body), self._checkpoints(node.orelse)
        test = ast.unparse(node.test)
        if SWITCH not in test and not ("checkpoint" in test and here != there):
            self.generic_visit(node)
            return node
        kept = node.body if there and not here else node.orelse
        holder = self.generic_visit(ast.Module(body=kept, type_ignores=[]))
        return holder.body if isinstance(holder, ast.Module) else []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if (node.lineno, node.col_offset) in self.calls:
            node.args, node.keywords = [], []
        return node

    def _checkpoints(self, body: list[ast.stmt]) -> bool:
        return any(isinstance(n, ast.Call) and self.is_checkpoint(n) for s in body for n in ast.walk(s))
