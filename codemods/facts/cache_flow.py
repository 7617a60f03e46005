"""What a method does about caches: where it switches them off, makes them, and reads them out of a block's outputs."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ckpt_surgery.codemods.facts.file_facts import ModuleCall
from ckpt_surgery.codemods.facts.syntax import dotted, walk
from ckpt_surgery.model_patches.release_names import CACHE_STOPPERS, CACHE_SWITCH

_Tests: TypeAlias = tuple[ast.expr, ...]
_CACHE = "cache"


def with_cache_flow(function: ast.FunctionDef, calls: Iterable[ModuleCall]) -> Iterator[ModuleCall]:
    """A method's calls, with what it does about their caches."""
    flow = _Flow()
    for decorator in function.decorator_list:
        name = dotted(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if name.rpartition(".")[2] in CACHE_STOPPERS:
            flow.off[CACHE_SWITCH] = function.lineno
    flow.statements(function.body, ())
    for call in calls:
        place = (call.span.line, call.span.column)
        yield replace(call, reads_more_under=flow.reads_more_under(place), idle_caches=flow.idle(place))


@dataclass(frozen=True, slots=True)
class _GivenValue:
    """One value that a name may have, and the tests under which it gets it."""

    value: ast.expr
    tests: _Tests
    is_item: bool
    """Whether the name stands for an item of the value: `for name in value`."""


@dataclass(slots=True)
class _Flow:
    """One method, read from top to bottom."""

    off: dict[str, int] = field(default_factory=dict)
    """Names that are set to False where the model trains under checkpointing, with the line."""
    off_unless_asked: set[str] = field(default_factory=set)
    """Names that are False in training unless a caller asks for them."""
    assigned: dict[str, list[_GivenValue]] = field(default_factory=dict)
    results: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Names that are bound to what a call returns, with the places of the calls."""
    read: dict[str, set[str]] = field(default_factory=dict)
    """For each of these names, what is tested before one of its later items is read."""
    calls: dict[tuple[int, int], ast.Call] = field(default_factory=dict)

    def statements(self, statements: Iterable[ast.stmt], tests: _Tests) -> None:
        for statement in statements:
            self._visit(statement, tests)

    def _visit(self, node: ast.AST, tests: _Tests) -> None:
        match node:
            case ast.If(test=test, body=body, orelse=orelse):
                self._visit(test, tests)
                self.statements(body, (*tests, test))
                self.statements(orelse, tests)
                return
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self._visit(test, tests)
                self._visit(body, (*tests, test))
                self._visit(orelse, tests)
                return
            case ast.FunctionDef() | ast.Lambda() | ast.ClassDef():
                return
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._assign(name, value, tests)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Name(id=name)):
                if not any(isinstance(target, ast.Starred) for target in targets):
                    self._reads(name, tests)
            case ast.For(target=target, iter=iterable):
                for inner in walk(target):
                    if isinstance(inner, ast.Name):
                        self.assigned.setdefault(inner.id, []).append(_GivenValue(iterable, tests, is_item=True))
            case ast.Subscript(value=ast.Name(id=name), slice=index, ctx=ast.Load()):
                if not isinstance(index, ast.Slice) and not (isinstance(index, ast.Constant) and index.value == 0):
                    self._reads(name, tests)
            case ast.Call():
                self.calls[(node.lineno, node.col_offset)] = node
        for inner in ast.iter_child_nodes(node):
            self._visit(inner, tests)

    def _assign(self, name: str, value: ast.expr, tests: _Tests) -> None:
        self.assigned.setdefault(name, []).append(_GivenValue(value, tests, is_item=False))
        if isinstance(value, ast.Call):
            self.results.setdefault(name, []).append((value.lineno, value.col_offset))
        is_false = isinstance(value, ast.Constant) and value.value in (False, None)
        parts = (inner for inner in walk(value) if isinstance(inner, ast.expr))
        if (is_false and any(map(_asks_for_training, tests))) or _is_false_in_training(value):
            self.off.setdefault(name, value.lineno)
        elif any(map(_is_false_in_training, parts)):
            self.off_unless_asked.add(name)

    def _reads(self, name: str, tests: _Tests) -> None:
        self.read.setdefault(name, set()).update(_names(tests))

    def reads_more_under(self, place: tuple[int, int]) -> tuple[str, ...]:
        """The names that decide whether a later item of this call's result is read, and stay on in training."""
        found: set[str] = set()
        for name, places in self.results.items():
            if place in places:
                found |= self.read.get(name, set())
        return tuple(sorted(name for name in found if self.off.get(name, place[0]) >= place[0]))

    def idle(self, place: tuple[int, int]) -> tuple[int, ...]:
        """The positions of arguments that hold no cache in training, unless the method was called with one."""
        call = self.calls.get(place)
        if call is None:
            return ()
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        return tuple(position for position, value in enumerate(values) if self._is_idle(value))

    def _is_idle(self, value: ast.expr) -> bool:
        made = list(self._made(value, (), set()))
        guarded = any(_CACHE in name for name in (*self.off, *self.off_unless_asked))
        return (guarded or bool(made)) and all(self._is_off(tests, line) for tests, line in made)

    def _made(self, value: ast.expr, tests: _Tests, seen: set[str]) -> Iterator[tuple[_Tests, int]]:
        """Where what an expression stands for is made, and the tests under which it is."""
        match value:
            case ast.Name(id=name):
                if name not in seen:
                    seen.add(name)
                    for other in self.assigned.get(name, ()):
                        yield from self._made_of(other, (*tests, *other.tests), seen)
            case ast.Subscript(value=inner) | ast.Attribute(value=inner) | ast.Starred(value=inner):
                yield from self._made(inner, tests, seen)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                yield from self._made(body, (*tests, test), seen)
                yield from self._made(orelse, tests, seen)
            case ast.BoolOp(values=values):
                for inner in values:
                    yield from self._made(inner, tests, seen)
            case ast.Constant():
                return
            case _:
                if not _holds_none_alone(value):
                    yield tests, value.lineno

    def _made_of(self, assigned: _GivenValue, tests: _Tests, seen: set[str]) -> Iterator[tuple[_Tests, int]]:
        if not assigned.is_item:
            yield from self._made(assigned.value, tests, seen)
            return
        for name in _names((assigned.value,)):
            yield from self._made(ast.Name(name, ast.Load()), tests, seen)

    def _is_off(self, tests: _Tests, line: int) -> bool:
        """Whether what is made at a line, under these tests, is not made in training."""
        if any(_is_false_in_training(test) for test in tests):
            return True
        names = _names(tests)
        return any(self.off.get(name, line) < line for name in names) or bool(names & self.off_unless_asked)


def _asks_for_training(test: ast.expr) -> bool:
    """Whether a test holds where a model trains under checkpointing, or wherever it trains."""
    match test:
        case ast.BoolOp(op=ast.And(), values=values):
            return any(map(_asks_for_training, values))
        case ast.UnaryOp() | ast.BoolOp() | ast.Compare():
            return False
    text = ast.unparse(test)
    return "checkpointing" in text or text.endswith("training")


def _is_false_in_training(test: ast.expr) -> bool:
    """`not self.training`, and what holds only with it."""
    match test:
        case ast.BoolOp(op=ast.And(), values=values):
            return any(map(_is_false_in_training, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _asks_for_training(operand) and not isinstance(operand, ast.BoolOp)
        case ast.IfExp(test=inner, orelse=ast.Constant(value=False)):
            return _is_false_in_training(inner)
    return False


def _holds_none_alone(value: ast.expr) -> bool:
    """`[None] * n`, `tuple([None] * n)`: as many places as there are blocks, and nothing in them."""
    lists = [inner for inner in walk(value) if isinstance(inner, ast.List | ast.ListComp | ast.Tuple | ast.Dict)]
    return bool(lists) and all(
        isinstance(inner, ast.List) and [ast.unparse(item) for item in inner.elts] == ["None"] for inner in lists
    )


def _names(expressions: Iterable[ast.expr]) -> set[str]:
    """The names and attributes that expressions mention, what they call left out."""
    found: set[str] = set()
    for expression in expressions:
        called = {id(node.func) for node in walk(expression) if isinstance(node, ast.Call)}
        found.update(
            text
            for node in walk(expression)
            if isinstance(node, ast.Name | ast.Attribute) and id(node) not in called and (text := dotted(node))
        )
    return found
