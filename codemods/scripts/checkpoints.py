"""Where a script asks for reentrant checkpointing: explicitly, or by leaving the option out."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ckpt_surgery.codemods.facts.script_facts import ReentrantCheckpoint, Spot
from ckpt_surgery.codemods.facts.syntax import arguments_of, span_of
from ckpt_surgery.codemods.scripts.names import Function, Names, scopes, tail

_OPTION = "use_reentrant"
_CHECKPOINT = {"torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential"}
_ENABLE = {"gradient_checkpointing_enable", "activation_checkpointing_enable"}


def reentrant(names: Names) -> Iterator[ReentrantCheckpoint]:
    """Every such place, once, in the order of the scopes."""
    for scope, body in scopes(names):
        for statement in body:
            if not isinstance(statement, Function):
                yield from _within(names, statement, statement.lineno, scope)


def _within(names: Names, node: ast.AST, line: int, scope: str) -> Iterator[ReentrantCheckpoint]:
    line = node.lineno if isinstance(node, ast.stmt) else line
    if isinstance(node, ast.Call):
        yield from _call(names, node, line, scope)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == _OPTION and _is_true(value):
                yield ReentrantCheckpoint(Spot(span_of(value), line, scope), "", "true")
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function):
            yield from _within(names, child, line, scope)


def _call(names: Names, call: ast.Call, line: int, scope: str) -> Iterator[ReentrantCheckpoint]:
    callee = ast.unparse(call.func)
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if _OPTION in given:
        if _is_true(given[_OPTION]):
            yield ReentrantCheckpoint(Spot(span_of(given[_OPTION]), line, scope), callee, "true")
    elif names.origin(call.func) in _CHECKPOINT and None not in given:
        yield ReentrantCheckpoint(Spot(span_of(call), line, scope), callee, "default", arguments_of(call))
    elif tail(call.func) in _ENABLE and not call.args and not call.keywords:
        yield ReentrantCheckpoint(Spot(span_of(call), line, scope), callee, "enable")


def _is_true(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is True
