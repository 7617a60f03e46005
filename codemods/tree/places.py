"""The places of one file by name: the class, function and count of a span, as the transformers of `edits/` ask for.

Facts hold spans alone; names are made from them only where something is to be repaired.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from ckpt_surgery.codemods.facts.file_facts import Class, FileFacts
from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.facts.syntax import Span, span_of, statements_below
from ckpt_surgery.codemods.repair import Definition, Occurrence

_Scope: TypeAlias = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Places:
    """Names for the spans of one file."""

    def __init__(self, source: SourceText, facts: FileFacts) -> None:
        self._source = source
        self._facts = facts
        self._named = Counter(cls.name for cls in facts.classes)
        self._trees: dict[int, ast.Module] = {}

    def cls(self, cls: Class) -> Definition:
        """A class of the facts."""
        before = [other for other in self._facts.classes if other.name == cls.name and other.span < cls.span]
        return Definition(cls.name, len(before))

    def definition(self, span: Span) -> Definition:
        """The innermost class or function that a span is in, or that it is."""
        return self._scope(self._tree(span), span)[0]

    def call(self, span: Span) -> Occurrence:
        """The call at a span."""
        return self._occurrence(span, ast.Call)

    def name(self, span: Span) -> Occurrence:
        """The name, or the constant that is written as one, at a span."""
        return self._occurrence(span, ast.Name, ast.Constant)

    def branch(self, span: Span) -> Occurrence:
        """The `if` at a span."""
        return self._occurrence(span, ast.If)

    def choice(self, span: Span) -> Occurrence:
        """The conditional expression at a span."""
        return self._occurrence(span, ast.IfExp)

    def _occurrence(self, span: Span, *kinds: type[ast.AST]) -> Occurrence:
        definition, scope = self._scope(self._tree(span), span)
        inside = statements_below(scope) if kinds == (ast.If,) else _inside(scope)
        nodes = [node for node in inside if isinstance(node, kinds) and isinstance(node, ast.expr | ast.stmt)]
        nodes.sort(key=_source_order)
        at = next(at for at, node in enumerate(nodes) if span_of(node) == span)
        code = self._code(nodes[at])
        return Occurrence(definition, code, sum(self._code(node) == code for node in nodes[:at]))

    def _code(self, node: ast.AST) -> str:
        """What an occurrence is found by."""
        match node:
            case ast.Call(func=function):
                return "".join(self._source.of(span_of(function)).split())
            case ast.Name() | ast.Constant():
                return "".join(self._source.of(span_of(node)).split())
        return ""

    def _scope(self, tree: ast.Module, span: Span) -> tuple[Definition, ast.Module | _Scope]:
        """The innermost definition around a span."""
        scope: ast.Module | _Scope = tree
        names: list[str] = []
        while (inner := next((node for node in _definitions(scope) if _holds(node, span)), None)) is not None:
            names.append(inner.name)
            scope = inner
        if not names:
            return Definition(), tree
        name = ".".join(names)
        twins = [node for qualified, node in _qualified(tree) if qualified == name]
        return Definition(name, twins.index(scope) if isinstance(scope, _SCOPES) else 0), scope

    def _tree(self, span: Span) -> ast.Module:
        """The syntax of the top-level class around a span; of the whole file where the span is in none."""
        outer = next((cls for cls in self._facts.classes if self._is_alone(cls) and _lines_hold(cls, span)), None)
        first = outer.first_line if outer else 1
        if first not in self._trees:
            start = self._source.offset(first, 0)
            end = self._source.offset(*_end(outer)) if outer else len(self._source.text)
            # blank lines in front: counting lines on in a tree takes as long as parsing it
            self._trees[first] = ast.parse("\n" * (first - 1) + self._source.text[start:end])
        return self._trees[first]

    def _is_alone(self, cls: Class) -> bool:
        return cls.span.column == 0 and self._named[cls.name] == 1 and cls.first_line > 1


def _end(cls: Class) -> tuple[int, int]:
    return cls.span.end_line, cls.span.end_column


def _lines_hold(cls: Class, span: Span) -> bool:
    return cls.first_line <= span.line and span.end_line <= cls.span.end_line


def _holds(node: _Scope, span: Span) -> bool:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return first <= span.line and (span.end_line, span.end_column) <= (node.end_lineno or 0, node.end_col_offset or 0)


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """Every node below a node, but for those in f-strings and in the patterns of `case`."""
    waiting = [scope]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if not isinstance(node, ast.JoinedStr | ast.pattern):
                yield node
                waiting.append(node)


def _definitions(scope: ast.AST) -> Iterator[_Scope]:
    """The classes and functions directly in a scope, under whatever statements."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, _SCOPES):
            yield node
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _definitions(node)


def _qualified(scope: ast.AST, prefix: str = "") -> Iterator[tuple[str, _Scope]]:
    for node in _definitions(scope):
        yield f"{prefix}{node.name}", node
        yield from _qualified(node, f"{prefix}{node.name}.")


def _source_order(node: ast.expr | ast.stmt) -> tuple[int, int, int, int]:
    """Outer nodes before those that begin at the same place."""
    span = span_of(node)
    return span.line, span.column, -span.end_line, -span.end_column
