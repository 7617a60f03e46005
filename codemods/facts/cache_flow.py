"""Follow caches through a method: where it switches them off, makes them, and reads them from a block's outputs."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from ckpt_surgery.codemods.facts.file_facts import ModuleCall
from ckpt_surgery.codemods.facts.interpreter import Interpreter
from ckpt_surgery.codemods.facts.syntax import Span, called, dotted, last_name, span_of, values_of, walk
from ckpt_surgery.model_patches.release_names import CACHE_STOPPERS, CACHE_SWITCH

_Tests: TypeAlias = tuple[ast.expr, ...]
_CACHE = "cache"
_LISTS = (ast.List, ast.ListComp, ast.Tuple, ast.Dict)


def with_cache_flow(function: ast.FunctionDef, calls: Iterable[ModuleCall]) -> Iterator[ModuleCall]:
    """Yield a method's calls, with what it does about their caches."""
    reader = _CacheReader()
    for decorator in function.decorator_list:
        if last_name(called(decorator)) in CACHE_STOPPERS:
            reader.off[CACHE_SWITCH] = function.lineno
    reader.follow(function.body)
    for call in calls:
        yield replace(call, reads_more_under=reader.reads_more_under(call.span), idle_caches=reader.idle(call.span))


class _GivenValue(NamedTuple):
    """One value that a name may have, and the tests under which it gets it."""

    value: ast.expr
    tests: _Tests
    is_item: bool
    """Whether the name stands for an item of the value: `for name in value`."""


class _CacheReader(Interpreter[None]):
    """Collects what one method assigns, calls and reads, each with the tests that hold there."""

    nothing = None

    def __init__(self) -> None:
        super().__init__()
        self.off: dict[str, int] = {}
        """Names that are set to False where the model trains under checkpointing, with the line."""
        self._off_unless_asked: set[str] = set()
        """Names that are False in training unless a caller asks for them."""
        self._assigned: dict[str, list[_GivenValue]] = {}
        self._results: dict[str, list[Span]] = {}
        """Names that are bound to what a call returns, with the places of the calls."""
        self._read: dict[str, set[str]] = {}
        """For each of these names, what is tested before one of its later items is read."""
        self._calls: dict[Span, ast.Call] = {}

    @property
    def _tests(self) -> _Tests:
        return tuple(condition.test for condition in self.conditions if condition.truth)

    def join(self, values: Sequence[None]) -> None:
        """Ignore the values: none is followed."""

    def items(self, target: ast.expr, iterable: ast.expr) -> list[tuple[ast.expr, None]]:
        self.value(iterable)
        for inner in walk(target):
            if isinstance(inner, ast.Name):
                self._assigned.setdefault(inner.id, []).append(_GivenValue(iterable, self._tests, is_item=True))
        return []

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        """Note what a name is set to, and that a result is unpacked."""
        self.value(value)
        match target, value:
            case ast.Name(id=name), _:
                tests = self._tests
                self._assigned.setdefault(name, []).append(_GivenValue(value, tests, is_item=False))
                if isinstance(value, ast.Call):
                    self._results.setdefault(name, []).append(span_of(value))
                is_false = isinstance(value, ast.Constant) and value.value in (False, None)
                parts = (inner for inner in walk(value) if isinstance(inner, ast.expr))
                if (is_false and any(map(_asks_for_training, tests))) or _is_false_in_training(value):
                    self.off.setdefault(name, value.lineno)
                elif any(map(_is_false_in_training, parts)):
                    self._off_unless_asked.add(name)
            case ast.Tuple(elts=targets), ast.Name(id=name):
                if not any(isinstance(inner, ast.Starred) for inner in targets):
                    self._reads(name)

    def subscript(self, node: ast.Subscript) -> None:
        """Note that another item than the first is read."""
        super().subscript(node)
        if isinstance(node.value, ast.Name) and isinstance(node.ctx, ast.Load):
            index = node.slice
            if not isinstance(index, ast.Slice) and not (isinstance(index, ast.Constant) and index.value == 0):
                self._reads(node.value.id)

    def attribute(self, node: ast.Attribute, base: None) -> None:
        """Ignore the attribute."""

    def call(self, node: ast.Call) -> None:
        self._calls[span_of(node)] = node
        self.parts(node)

    def _reads(self, name: str) -> None:
        self._read.setdefault(name, set()).update(_names(self._tests))

    # -- what was collected, to be asked for once the whole method is read

    def reads_more_under(self, place: Span) -> tuple[str, ...]:
        """Return the names that decide whether a later item of a call's result is read, and stay on in training."""
        results = (name for name, places in self._results.items() if place in places)
        tested = set[str]().union(*(self._read.get(name, ()) for name in results))
        return tuple(sorted(name for name in tested if self.off.get(name, place.line) >= place.line))

    def idle(self, place: Span) -> tuple[int, ...]:
        """Return the positions of arguments that hold no cache in training, unless the method was called with one."""
        call = self._calls.get(place)
        values = values_of(call) if call else []
        guarded = any(_CACHE in name for name in (*self.off, *self._off_unless_asked))
        idle: list[int] = []
        for position, value in enumerate(values):
            made = list(self._made(value, (), set()))
            if (guarded or made) and all(self._is_off(tests, line) for tests, line in made):
                idle.append(position)
        return tuple(idle)

    def _made(self, value: ast.expr, tests: _Tests, seen: set[str]) -> Iterator[tuple[_Tests, int]]:
        """Yield where what an expression stands for is made, and the tests under which it is."""
        match value:
            case ast.Name(id=name) if name not in seen:
                seen.add(name)
                for given in self._assigned.get(name, ()):
                    parts = map(ast.Name, _names([given.value])) if given.is_item else iter([given.value])
                    for part in parts:
                        yield from self._made(part, (*tests, *given.tests), seen)
            case ast.Name() | ast.Constant():
                return
            case ast.Subscript(value=inner) | ast.Attribute(value=inner) | ast.Starred(value=inner):
                yield from self._made(inner, tests, seen)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                yield from self._made(body, (*tests, test), seen)
                yield from self._made(orelse, tests, seen)
            case ast.BoolOp(values=values):
                for inner in values:
                    yield from self._made(inner, tests, seen)
            case _:
                # a value that only makes room holds none: `[None] * n`, `tuple([None] * n)`
                lists = [node for node in walk(value) if isinstance(node, _LISTS)]
                if not lists or any(ast.unparse(node) != "[None]" for node in lists):
                    yield tests, value.lineno

    def _is_off(self, tests: _Tests, line: int) -> bool:
        """Tell whether what is made at a line, under these tests, is not made in training."""
        names = _names(tests)
        return (
            any(map(_is_false_in_training, tests))
            or any(self.off.get(name, line) < line for name in names)
            or bool(names & self._off_unless_asked)
        )


def _asks_for_training(test: ast.expr) -> bool:
    """Tell whether a test holds where a model trains under checkpointing, or wherever it trains."""
    match test:
        case ast.BoolOp(op=ast.And(), values=values):
            return any(map(_asks_for_training, values))
        case ast.UnaryOp() | ast.BoolOp() | ast.Compare():
            return False
    text = ast.unparse(test)
    return "checkpointing" in text or text.endswith("training")


def _is_false_in_training(test: ast.expr) -> bool:
    """Tell whether a test is `not self.training`, or holds only with it."""
    match test:
        case ast.BoolOp(op=ast.And(), values=values):
            return any(map(_is_false_in_training, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _asks_for_training(operand) and not isinstance(operand, ast.BoolOp)
        case ast.IfExp(test=inner, orelse=ast.Constant(value=False)):
            return _is_false_in_training(inner)
    return False


def _names(expressions: Iterable[ast.expr]) -> set[str]:
    """Return the names and attributes that expressions mention, what they call left out."""
    mentioned: set[str] = set()
    for expression in expressions:
        nodes = walk(expression)
        callees = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        names = (node for node in nodes if isinstance(node, ast.Name | ast.Attribute) and id(node) not in callees)
        mentioned.update(text for node in names if (text := dotted(node)))
    return mentioned
