"""Turn spans of a file into names by which the transformers of `edits/` find them again: definition, code and count.

Facts hold spans only; names are made from them only if something is to be repaired.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from ckpt_surgery.codemods.facts.file_facts import Class, FileFacts
from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.facts.syntax import Span, first_line_of, span_of, statements_below
from ckpt_surgery.codemods.repair import Definition, Occurrence
from ckpt_surgery.codemods.tree.caching import cached_method

_Scope: TypeAlias = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_Syntax: TypeAlias = tuple[ast.Module, list[tuple[str, _Scope]]]
"""A syntax tree, and its classes and functions by their qualified names, outer ones before those inside."""


class Places:
    """Names for the spans of one file."""

    def __init__(self, source: SourceText, facts: FileFacts) -> None:
        self._source = source
        self._facts = facts
        self._named = Counter(cls.name for cls in facts.classes)

    def cls(self, cls: Class) -> Definition:
        """Return the name of a class of the facts."""
        same = (other for other in self._facts.classes if other.name == cls.name)
        return Definition(cls.name, sum(other.span < cls.span for other in same))

    def definition(self, span: Span) -> Definition:
        """Return the innermost class or function that a span is in, or that it is."""
        return self._scope(span)[0]

    def call(self, span: Span) -> Occurrence:
        """Return the call at a span."""
        return self._occurrence(span, ast.Call)

    def name(self, span: Span) -> Occurrence:
        """Return the name, or the constant that is written as one, at a span."""
        return self._occurrence(span, ast.Name, ast.Constant)

    def branch(self, span: Span) -> Occurrence:
        """Return the `if` at a span."""
        return self._occurrence(span, ast.If)

    def _occurrence(self, span: Span, *kinds: type[ast.expr | ast.stmt]) -> Occurrence:
        definition, scope = self._scope(span)
        inside = statements_below(scope) if kinds == (ast.If,) else _inside(scope)
        spans = {node: span_of(node) for node in inside if isinstance(node, kinds)}
        # outer nodes before those that begin at the same place
        nodes = sorted(spans, key=lambda node: (*spans[node][:2], -spans[node].end_line, -spans[node].end_column))
        index = next(index for index, node in enumerate(nodes) if spans[node] == span)
        code = self._code(nodes[index])
        return Occurrence(definition, code, sum(self._code(node) == code for node in nodes[:index]))

    def _code(self, node: ast.expr | ast.stmt) -> str:
        """Return the code by which an occurrence is found, without white space; empty for an `if`."""
        if isinstance(node, ast.If):
            return ""
        return "".join(self._source.of(span_of(node.func if isinstance(node, ast.Call) else node)).split())

    def _scope(self, span: Span) -> tuple[Definition, ast.Module | _Scope]:
        tree, scopes = self._syntax(span)
        around = [
            (name, node)
            for name, node in scopes
            if first_line_of(node) <= span.line
            and (span.end_line, span.end_column) <= (node.end_lineno or 0, node.end_col_offset or 0)
        ]
        if not around:
            return Definition(), tree
        innermost, scope = around[-1]
        twins = [node for name, node in scopes if name == innermost]
        return Definition(innermost, twins.index(scope)), scope

    def _syntax(self, span: Span) -> _Syntax:
        """Return the syntax of the top-level class around a span; of the whole file if the span is in none."""
        for cls in self._facts.classes:
            is_alone = cls.span.column == 0 and self._named[cls.name] == 1 and cls.first_line > 1
            if is_alone and cls.first_line <= span.line and span.end_line <= cls.span.end_line:
                return self._parsed(cls.first_line, self._source.offset(cls.span.end_line, cls.span.end_column))
        return self._parsed(1, len(self._source.text))

    @cached_method
    def _parsed(self, first_line: int, end: int) -> _Syntax:
        text = self._source.text[self._source.offset(first_line, 0) : end]
        # blank lines in front keep the line numbers: `ast.increment_lineno` takes as long as parsing
        tree = ast.parse("\n" * (first_line - 1) + text)
        return tree, list(_scopes(tree))


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield every node below a node, except inside f-strings and `case` patterns."""
    pending = [scope]
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            if not isinstance(node, ast.JoinedStr | ast.pattern):
                yield node
                pending.append(node)


def _scopes(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, _Scope]]:
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, _Scope):
            yield f"{prefix}{inner.name}", inner
            yield from _scopes(inner, f"{prefix}{inner.name}.")
        elif isinstance(inner, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _scopes(inner, prefix)
