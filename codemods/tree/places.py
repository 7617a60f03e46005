"""Turn spans of a file into names by which the transformers of `edits/` find them again: definition, code and count.

Facts hold spans only; names are made from them only if something is to be repaired.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import TypeAlias

from ckpt_surgery.codemods.facts.source_text import SourceText
from ckpt_surgery.codemods.facts.syntax import Span, first_line_of, span_of, statements_below
from ckpt_surgery.codemods.repair import Definition, Occurrence

_Scope: TypeAlias = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Places:
    """Names for the spans of one file."""

    def __init__(self, source: SourceText) -> None:
        self._source = source

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
        around = [
            (name, node)
            for name, node in self._scopes
            if first_line_of(node) <= span.line
            and (span.end_line, span.end_column) <= (node.end_lineno or 0, node.end_col_offset or 0)
        ]
        if not around:
            return Definition(), self._tree
        innermost, scope = around[-1]
        twins = [node for name, node in self._scopes if name == innermost]
        return Definition(innermost, twins.index(scope)), scope

    @cached_property
    def _tree(self) -> ast.Module:
        return ast.parse(self._source.text)

    @cached_property
    def _scopes(self) -> list[tuple[str, _Scope]]:
        """The classes and functions by their qualified names, outer ones before those inside."""
        return list(_scopes(self._tree))


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
