"""What keeps upstream's generic checkpointing tests from a model family, found in the text of test files.

There are two kinds: an override in the family's own test file, and the family's name in a list of
`test_modeling_common.py`. The edits that remove them are made in `exclusion_edits`; whether they should be removed is
decided in `regression`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.static.edits import Edit
from ckpt_surgery.upstream.run.exclusion_edits import (
    remove_list_elements,
    remove_method,
    remove_sentences,
    remove_statement,
    replace_by_body,
)

_TOPIC = "checkpointing"
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class ExclusionKind(Enum):
    """How a generic test is kept from running or from failing. The values are noun phrases."""

    EXPECTED_FAILURE = "the expected failure"
    SKIP = "the skip"
    EMPTY_OVERRIDE = "the empty override"
    FEWER_MODELS = "the shorter list of models"
    LISTED = "the exclusion"
    """The family's name in a list of the common test file."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Something in a test file that keeps generic tests from running, or from failing, for a family.

    Attributes:
        kind: how it does so.
        subject: the overriding method (`ElmTest.test_x`), or the listed names and the function with the list.
        tests: the generic tests that it concerns.
        classes: the test class with the override and its subclasses in the file; empty for a list.
        edits: what removes it from its file.
    """

    kind: ExclusionKind
    subject: str
    tests: tuple[str, ...]
    classes: tuple[str, ...]
    edits: tuple[Edit, ...]

    @property
    def description(self) -> str:
        """The exclusion as a noun phrase."""
        return f"{self.kind.value} of {self.subject}"


_DECORATORS = {
    "skip": ExclusionKind.SKIP,
    "xfail": ExclusionKind.EXPECTED_FAILURE,
    "expectedFailure": ExclusionKind.EXPECTED_FAILURE,
}


def generic_tests(common: str) -> frozenset[str]:
    """The names of the checkpointing tests in the source of `test_modeling_common.py`."""
    functions = _functions(ast.parse(common))
    return frozenset(function.name for function in functions if _is_test(function) and _TOPIC in function.name)


def overrides(source: str, generic: Collection[str]) -> tuple[Exclusion, ...]:
    """The methods of a family's test file that override a generic test to skip it, excuse it or run fewer models."""
    text = SourceText(source)
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    exclusions = []
    for holder in classes:
        # Without a base there is nothing to override; without another statement the class would become empty.
        methods = holder.body if holder.bases and len(holder.body) > 1 else []
        for method in methods:
            if isinstance(method, ast.FunctionDef) and method.name in generic and (kind := _kind(method)):
                edit = remove_method(text, method, first=method is holder.body[0])
                subject = f"{holder.name}.{method.name}"
                exclusions.append(Exclusion(kind, subject, (method.name,), _with_subclasses(holder, classes), (edit,)))
    return tuple(exclusions)


def listed_exclusions(common: str, names: Collection[str]) -> tuple[Exclusion, ...]:
    """The lists of models in the generic tests of `test_modeling_common.py` that contain any of these names.

    Only `if ... in [...]:` and `if ... not in [...]:` are understood, without further conditions and without `else`.
    """
    text = SourceText(common)
    tree = ast.parse(common)
    exclusions = []
    for function in _functions(tree):
        if _TOPIC not in function.name:
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.If) and not node.orelse:
                listed, edits = _unlist(text, node, names)
                if edits:
                    subject = f"{' and '.join(listed)} in {function.name}"
                    tests = _concerned_tests(tree, function)
                    exclusions.append(Exclusion(ExclusionKind.LISTED, subject, tests, (), edits))
    return tuple(exclusions)


def _functions(tree: ast.Module) -> Iterator[_Function]:
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    return (node for holder in classes for node in holder.body if isinstance(node, _Function))


def _with_subclasses(holder: ast.ClassDef, classes: Iterable[ast.ClassDef]) -> tuple[str, ...]:
    """The names of a class and of its subclasses in the file."""
    names = [holder.name]
    for node in classes:
        if any(ast.unparse(base) in names for base in node.bases):
            names.append(node.name)
    return tuple(names)


def _is_test(function: _Function) -> bool:
    return function.name.startswith("test_")


def _kind(method: ast.FunctionDef) -> ExclusionKind | None:
    """How a method keeps the generic test from running or failing; None if it does not."""
    for decorator in method.decorator_list:
        function = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = ast.unparse(function).rpartition(".")[2]
        if name in _DECORATORS:
            return _DECORATORS[name]
    body = [statement for statement in method.body if not _is_docstring(statement)]
    if all(_does_nothing(statement) for statement in body):
        return ExclusionKind.EMPTY_OVERRIDE
    if any(_sets_model_classes(node) for node in ast.walk(method)):
        return ExclusionKind.FEWER_MODELS
    return None


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _does_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Return(value=None):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="skipTest"))):
            return True
    return False


def _sets_model_classes(node: ast.AST) -> bool:
    if not isinstance(node, ast.Assign):
        return False
    return any(isinstance(target, ast.Attribute) and target.attr == "all_model_classes" for target in node.targets)


def _unlist(text: SourceText, condition: ast.If, names: Collection[str]) -> tuple[list[str], tuple[Edit, ...]]:
    """The names that a condition lists, and the edits that remove them; no edits if the code is not understood."""
    match condition.test:
        case ast.Compare(
            ops=[ast.In() | ast.NotIn() as operator],
            comparators=[ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements) as container],
        ):
            listed = [element for element in elements if isinstance(element, ast.Constant) and element.value in names]
        case _:
            return [], ()
    if not listed:
        return [], ()
    values = [str(element.value) for element in listed]
    if len(listed) < len(elements):
        edits = remove_list_elements(text, container, elements, listed)
    elif isinstance(operator, ast.NotIn):
        edits = (*remove_sentences(text, condition, values), replace_by_body(text, condition))
    elif all(isinstance(statement, ast.Continue) or _does_nothing(statement) for statement in condition.body):
        edits = (remove_statement(text, condition),)
    else:
        edits = ()
    return values, edits


def _concerned_tests(tree: ast.Module, function: _Function) -> tuple[str, ...]:
    """The function itself if it is a test, else the tests of the common file that call it."""
    if _is_test(function):
        return (function.name,)
    calls = re.compile(rf"self\.{function.name}\(")
    tests = (test for test in _functions(tree) if _is_test(test))
    return tuple(test.name for test in tests if calls.search(ast.unparse(test)))
