"""The text and syntax tree of one file, with what several facts need of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property

from ckpt_surgery.codemods.facts.checkpoint_helpers import (
    TORCH,
    CheckpointHelpers,
    checkpoint_names,
    speaks_of_checkpointing,
)
from ckpt_surgery.codemods.facts.syntax import dotted


class FileSyntax:
    """The syntax of a file, shared by everything that reads its facts."""

    def __init__(self, source: str, tree: ast.Module) -> None:
        self.source = source
        self.tree = tree
        self.lines = source.split("\n")

    def mentions(self, *words: str) -> bool:
        """Tell whether one of the words is anywhere in the file's text."""
        return any(word in self.source for word in words)

    def text(self, node: ast.stmt) -> str:
        """Return the lines of a statement, without its decorators."""
        return "\n".join(self.lines[node.lineno - 1 : node.end_lineno])

    @cached_property
    def statements(self) -> tuple[tuple[ast.stmt, str], ...]:
        """Every statement at module level, with its guard: the test, "try" or "except" that it stands under."""
        return tuple(_guarded(self.tree.body, ""))

    @cached_property
    def set_attributes(self) -> tuple[tuple[str, str, ast.Assign], ...]:
        """Attributes that the module sets: `FooModel.forward = new` gives "FooModel", "forward" and the statement."""
        assigned = (statement for statement, _ in self.statements if isinstance(statement, ast.Assign))
        pairs = ((statement.targets[0], statement) for statement in assigned if len(statement.targets) == 1)
        return tuple(
            (dotted(left.value), left.attr, statement) for left, statement in pairs if isinstance(left, ast.Attribute)
        )

    @cached_property
    def functions(self) -> tuple[ast.FunctionDef, ...]:
        """The functions at module level, except those under a test."""
        return tuple(node for node in self.tree.body if isinstance(node, ast.FunctionDef))

    @cached_property
    def checkpoint_names(self) -> dict[str, str]:
        """The file's names for checkpoint functions, each with the module of the function."""
        return dict(checkpoint_names(self.source))

    @cached_property
    def torch_checkpoint_names(self) -> set[str]:
        """The file's names for torch's own checkpoint function."""
        return {f"{TORCH}.checkpoint", *(name for name, module in self.checkpoint_names.items() if module == TORCH)}

    @cached_property
    def may_checkpoint(self) -> bool:
        """Whether the file may have to do with checkpointing at all."""
        return speaks_of_checkpointing(self.source)

    @cached_property
    def helpers(self) -> CheckpointHelpers:
        """Its functions that checkpoint their arguments, or return one that does."""
        helpers = CheckpointHelpers(frozenset(self.checkpoint_names))
        if self.may_checkpoint:
            helpers.read(function for function in self.functions if helpers.may_be_in(self.text(function)))
        return helpers

    @cached_property
    def aliases(self) -> frozenset[str]:
        """The names that the module binds to checkpoint functions."""
        return self.helpers.aliases(self.tree.body) if self.may_checkpoint else frozenset()


def own_statements(cls: ast.ClassDef) -> list[ast.stmt]:
    """Return a class body's statements, including those under `if`, `try` and `with`."""
    return [statement for statement, _ in _guarded(cls.body, "")]


def methods_of(cls: ast.ClassDef) -> list[ast.FunctionDef]:
    """Return the methods of a class, in order."""
    return [statement for statement in own_statements(cls) if isinstance(statement, ast.FunctionDef)]


def _guarded(statements: Iterable[ast.stmt], guard: str) -> Iterator[tuple[ast.stmt, str]]:
    for statement in statements:
        match statement:
            case ast.If(test=test, body=body, orelse=orelse):
                text = ast.unparse(test)
                yield from _guarded(body, text)
                yield from _guarded(orelse, f"not {text}")
            case ast.Try(body=body, handlers=handlers, orelse=orelse):
                yield from _guarded(body, "try")
                for handler in handlers:
                    yield from _guarded(handler.body, "except")
                yield from _guarded(orelse, "try")
            case ast.With(body=body):
                yield from _guarded(body, guard)
            case _:
                yield statement, guard
