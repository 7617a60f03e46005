"""What keeps upstream's generic checkpointing tests from a model family, found in the text of its tests and removed.

There are two kinds: an override in the family's own test file, and the family's name in a list of
`test_modeling_common.py`. Nothing here runs a test or decides whether one is needed.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from ckpt_surgery.codemods.edits.imports import unused_imports
from ckpt_surgery.codemods.extract import extract
from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.facts.syntax import span_of
from ckpt_surgery.codemods.finding import Edit
from ckpt_surgery.static.edits import apply_edits

WIDTH = 119
"""The length of upstream's lines."""

_ABOUT = "checkpointing"
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\[`])")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class ExclusionKind(Enum):
    """How a generic test is kept from running, or from failing. The values are words for a sentence."""

    EXPECTED_FAILURE = "the expected failure"
    SKIP = "the skip"
    EMPTY_OVERRIDE = "the empty override"
    FEWER_MODELS = "the shorter list of models"
    LISTED = "the exclusion"
    """A list that all families share."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why some generic tests do not run, or cannot fail, for a family; `edits` remove it from its file.

    `subject` is the overriding method (`ElmTest.test_x`), or the names in a list and the function that has it.
    `classes` are the test classes with the override and those below them in the file, and none for a list.
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
    """The tests about checkpointing that the text of `test_modeling_common.py` has for every model."""
    functions = _functions(ast.parse(common))
    return frozenset(function.name for function in functions if _is_test(function) and _ABOUT in function.name)


def overrides(source: str, generic: Collection[str]) -> tuple[Exclusion, ...]:
    """The methods of a family's test file that override a generic test to skip, excuse or narrow it."""
    text = SourceText(source)
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    exclusions = []
    for holder in classes:
        # a class needs a base to take the test from, and another statement to consist of
        methods = holder.body if holder.bases and len(holder.body) > 1 else []
        for method in methods:
            if isinstance(method, ast.FunctionDef) and method.name in generic and (kind := _kind(method)):
                edit = _removal(text, method, first=method is holder.body[0])
                subject = f"{holder.name}.{method.name}"
                exclusions.append(Exclusion(kind, subject, (method.name,), _below(holder, classes), (edit,)))
    return tuple(exclusions)


def exclusions(common: str, names: Collection[str]) -> tuple[Exclusion, ...]:
    """The lists of models in the generic tests of `test_modeling_common.py` that hold one of these names.

    Only `if ... in [...]:` and `if ... not in [...]:` are understood, without other conditions and without `else`.
    """
    text = SourceText(common)
    tree = ast.parse(common)
    excluded = []
    for function in _functions(tree):
        if _ABOUT not in function.name:
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.If) and not node.orelse:
                removed, edits = _without(text, node, names)
                if edits:
                    subject = f"{' and '.join(removed)} in {function.name}"
                    excluded.append(Exclusion(ExclusionKind.LISTED, subject, _reached(tree, function), (), edits))
    return tuple(excluded)


def without(source: str, removed: Iterable[Exclusion]) -> str:
    """The text without these exclusions, and without imports that nothing else used."""
    after = apply_edits(source, [edit for exclusion in removed for edit in exclusion.edits])
    return apply_edits(after, unused_imports("", extract(after), source, SourceText(after), WIDTH))


def _functions(tree: ast.Module) -> Iterator[_Function]:
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    return (node for holder in classes for node in holder.body if isinstance(node, _Function))


def _below(holder: ast.ClassDef, classes: Iterable[ast.ClassDef]) -> tuple[str, ...]:
    """A class and those of the file that inherit from it."""
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
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = ast.unparse(called).rpartition(".")[2]
        if name in _DECORATORS:
            return _DECORATORS[name]
    body = [statement for statement in method.body if not _is_docstring(statement)]
    if all(_does_nothing(statement) for statement in body):
        return ExclusionKind.EMPTY_OVERRIDE
    if any(_narrows(node) for node in ast.walk(method)):
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


def _narrows(node: ast.AST) -> bool:
    if not isinstance(node, ast.Assign):
        return False
    return any(isinstance(target, ast.Attribute) and target.attr == "all_model_classes" for target in node.targets)


def _removal(text: SourceText, method: ast.FunctionDef, *, first: bool) -> Edit:
    """Removes a method, the comments directly above it, and the blank lines before it."""
    start = text.offset(min([method.lineno, *(decorator.lineno for decorator in method.decorator_list)]), 0)
    end = _next_line(text, text.offset(method.end_lineno or method.lineno, 0))
    start = _comments_above(text, start)
    if first:
        while end < len(text.text) and not _line(text, end).strip():
            end = _next_line(text, end)
        return Edit("", start, end, "")
    return Edit("", _blank_above(text, start), end, "")


def _without(text: SourceText, node: ast.If, names: Collection[str]) -> tuple[list[str], tuple[Edit, ...]]:
    """The names of a condition's list that are in `names`, and the edits that remove them; none if not understood."""
    match node.test:
        case ast.Compare(
            ops=[ast.In() | ast.NotIn() as operator],
            comparators=[ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements) as listed],
        ):
            gone = [element for element in elements if isinstance(element, ast.Constant) and element.value in names]
        case _:
            return [], ()
    if not gone:
        return [], ()
    values = [str(element.value) for element in gone]
    if len(gone) < len(elements):
        edits = _shortened(text, listed, elements, gone)
    elif isinstance(operator, ast.NotIn):
        edits = (*_comment_edits(text, node, values), _unwrapped(text, node))
    elif all(isinstance(statement, ast.Continue) or _does_nothing(statement) for statement in node.body):
        start = _blank_above(text, _comments_above(text, text.offset(node.lineno, 0)))
        end = _next_line(text, text.offset(node.end_lineno or node.lineno, 0))
        edits = (Edit("", start, end, ""),)
    else:
        edits = ()
    return values, edits


def _shortened(
    text: SourceText, listed: ast.expr, elements: list[ast.expr], gone: list[ast.Constant]
) -> tuple[Edit, ...]:
    """Edits that shorten a list, which is on one line, or has each element on lines of its own."""
    if listed.lineno == listed.end_lineno:
        start, end = text.range(span_of(listed))
        kept = [text.of(span_of(element)) for element in elements if element not in gone]
        comma = "," if isinstance(listed, ast.Tuple) and len(kept) == 1 else ""
        return (Edit("", start, end, text.text[start] + ", ".join(kept) + comma + text.text[end - 1]),)
    edits = []
    for element in gone:
        start, end = text.range(span_of(element))
        low, high = text.line_start(start), _next_line(text, end)
        if text.text[low:high].split("#")[0].strip().rstrip(",") != text.text[start:end]:
            return ()
        edits.append(Edit("", low, high, ""))
    return tuple(edits)


def _unwrapped(text: SourceText, node: ast.If) -> Edit:
    """The body of a condition in its place."""
    start = text.offset(node.lineno, 0)
    inner = text.offset(node.body[0].lineno, 0)
    end = _next_line(text, text.offset(node.end_lineno or node.lineno, 0))
    deeper = " " * (node.body[0].col_offset - node.col_offset)
    lines = text.text[inner:end].splitlines(keepends=True)
    return Edit("", start, end, "".join(line.removeprefix(deeper) for line in lines))


def _comment_edits(text: SourceText, node: ast.If, gone: Collection[str]) -> tuple[Edit, ...]:
    """The comment above a condition that is removed, without the sentences about these names."""
    end = text.offset(node.lineno, 0)
    start = _comments_above(text, end)
    indent = text.indent(end)
    words = " ".join(line.strip().removeprefix("#").strip() for line in text.text[start:end].splitlines())
    sentences = _SENTENCE.split(words)
    about = re.compile(rf"\b(?:{'|'.join(map(re.escape, gone))})\b", re.IGNORECASE)
    kept = [sentence for sentence in sentences if not about.search(sentence)]
    if len(kept) == len(sentences):
        return ()
    lines = textwrap.wrap(" ".join(kept), WIDTH - len(indent) - 2, break_long_words=False, break_on_hyphens=False)
    return (Edit("", start, end, "".join(f"{indent}# {line}{text.newline}" for line in lines)),)


def _reached(tree: ast.Module, function: _Function) -> tuple[str, ...]:
    """The tests that a function of the common file is, or is called from."""
    if _is_test(function):
        return (function.name,)
    calls = re.compile(rf"self\.{function.name}\(")
    tests = (test for test in _functions(tree) if _is_test(test))
    return tuple(test.name for test in tests if calls.search(ast.unparse(test)))


def _comments_above(text: SourceText, start: int) -> int:
    """Where the comment lines directly above a line begin, at the same depth."""
    indent = text.indent(start)
    while start > 0:
        above = text.line_start(start - 1)
        if not _line(text, above).startswith(f"{indent}#"):
            break
        start = above
    return start


def _blank_above(text: SourceText, start: int) -> int:
    while start > 0 and not _line(text, text.line_start(start - 1)).strip():
        start = text.line_start(start - 1)
    return start


def _line(text: SourceText, start: int) -> str:
    return text.text[start : text.line_end(start)]


def _next_line(text: SourceText, offset: int) -> int:
    return min(text.line_end(offset) + len(text.newline), len(text.text))
