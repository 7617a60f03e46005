"""Find overrides in a family's own test files that keep upstream's generic checkpointing tests from it.

`regression` decides whether they should be removed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

import libcst as cst

from ckpt_surgery.codemods.edits.rewrite import transformed
from ckpt_surgery.codemods.extract import extract
from ckpt_surgery.codemods.repair import Definition, DropMethod
from ckpt_surgery.codemods.repairs.unused_imports import unused_imports
from ckpt_surgery.upstream.layout import LINE_LENGTH

_DECORATORS = {
    "skip": "the skip",
    "xfail": "the expected failure",
    "expectedFailure": "the expected failure",
}


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A method that overrides a generic test to skip it, excuse it or run fewer models.

    Attributes:
        path: the test file, relative to the top of the checkout.
        kind: what the override does, as a noun phrase.
        subject: the method with its class (`ElmTest.test_x`).
        classes: the class that has the method, and its subclasses in the file.
    """

    path: str
    kind: str
    subject: str
    classes: tuple[str, ...]

    def concerns(self, tests: Iterable[str]) -> bool:
        """Tell whether it overrides any of these tests (pytest ids)."""
        name = self.subject.partition(".")[2]
        return not {f"{self.path}::{holder}::{name}" for holder in self.classes}.isdisjoint(tests)

    def __str__(self) -> str:
        return f"{self.kind} of {self.subject} ({self.path})"

    @classmethod
    def found_in(cls, path: str, source: str) -> list[Exclusion]:
        """List the overrides in a test file that keep a test of checkpointing from running or from failing."""
        classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
        exclusions = []
        for holder in classes:
            names = [holder.name]
            for node in classes:
                names += [node.name] * any(ast.unparse(base) in names for base in node.bases)
            methods = [method for method in holder.body if isinstance(method, ast.FunctionDef)]
            for method in methods:
                is_test = method.name.startswith("test_") and "checkpointing" in method.name
                kind = _kind(method) if is_test else ""
                if kind:
                    exclusions.append(cls(path, kind, f"{holder.name}.{method.name}", tuple(names)))
        return exclusions


def without(source: str, exclusions: Iterable[Exclusion]) -> str:
    """Return the source without these overrides, without their comments and the imports that only they used."""
    repairs = [DropMethod("", None, Definition(exclusion.subject)) for exclusion in exclusions]
    after = transformed(cst.parse_module(source), repairs).code
    unused = unused_imports("", extract(after), source, after, LINE_LENGTH)
    return transformed(cst.parse_module(after), [unused]).code if unused else after


def _kind(method: ast.FunctionDef) -> str:
    """Return how a method keeps the generic test from running or failing; empty if it does not."""
    for decorator in method.decorator_list:
        function = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = ast.unparse(function).rpartition(".")[2]
        if name in _DECORATORS:
            return _DECORATORS[name]
    if all(map(_does_nothing, method.body)):
        return "the empty override"
    targets = [target for node in ast.walk(method) if isinstance(node, ast.Assign) for target in node.targets]
    fewer = any(isinstance(target, ast.Attribute) and target.attr == "all_model_classes" for target in targets)
    return "the shorter list of models" if fewer else ""


def _does_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Return(value=None) | ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="skipTest"))):
            return True
    return False
