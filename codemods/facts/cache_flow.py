"""Find out whether a method's caches are off in training: those it makes, and those it reads from blocks' outputs."""

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
_CACHE_WORD = "cache"
_DISPLAYS = (ast.List, ast.ListComp, ast.Tuple, ast.Dict)


def with_cache_flow(function: ast.FunctionDef, calls: Iterable[ModuleCall]) -> Iterator[ModuleCall]:
    """Yield a method's calls with `reads_more_under` and `idle_caches` filled in."""
    reader = _CacheReader()
    for decorator in function.decorator_list:
        if last_name(called(decorator)) in CACHE_STOPPERS:
            reader.off[CACHE_SWITCH] = function.lineno
    reader.follow(function.body)
    for call in calls:
        yield replace(call, reads_more_under=reader.reads_more_under(call.span), idle_caches=reader.idle(call.span))


class _GivenValue(NamedTuple):
    """A value that a name may have, and the tests under which it is assigned."""

    value: ast.expr
    tests: _Tests
    is_item: bool
    """Whether the name stands for an item of the value: `for name in value`."""


class _CacheReader(Interpreter[None]):
    """Collects what one method assigns, calls and reads, with the tests around it."""

    nothing = None

    def __init__(self) -> None:
        super().__init__()
        self.off: dict[str, int] = {}
        """Names that are False once the model trains under checkpointing, with the line that sets them."""
        self._off_by_default: set[str] = set()
        """Names that are False in training unless a caller passes True."""
        self._assigned: dict[str, list[_GivenValue]] = {}
        self._results: dict[str, list[Span]] = {}
        """Names that are bound to what a call returns, with the places of the calls."""
        self._read: dict[str, set[str]] = {}
        """For each of these names, the names in tests around a read of another item than the first."""
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
        """Note the value of a name, and the unpacking of a result."""
        self.value(value)
        match target, value:
            case ast.Name(id=name), _:
                tests = self._tests
                self._assigned.setdefault(name, []).append(_GivenValue(value, tests, is_item=False))
                if isinstance(value, ast.Call):
                    self._results.setdefault(name, []).append(span_of(value))
                is_false = isinstance(value, ast.Constant) and value.value in (False, None)
                parts = (inner for inner in walk(value) if isinstance(inner, ast.expr))
                if (is_false and any(map(_is_true_in_training, tests))) or _is_false_in_training(value):
                    self.off.setdefault(name, value.lineno)
                elif any(map(_is_false_in_training, parts)):
                    self._off_by_default.add(name)
            case ast.Tuple(elts=targets), ast.Name(id=name):
                if not any(isinstance(inner, ast.Starred) for inner in targets):
                    self._note_read(name)

    def subscript(self, node: ast.Subscript) -> None:
        """Note a read of another item than the first."""
        super().subscript(node)
        if isinstance(node.value, ast.Name) and isinstance(node.ctx, ast.Load):
            index = node.slice
            if not isinstance(index, ast.Slice) and not (isinstance(index, ast.Constant) and index.value == 0):
                self._note_read(node.value.id)

    def attribute(self, node: ast.Attribute, base: None) -> None:
        """Ignore the attribute."""

    def call(self, node: ast.Call) -> None:
        self._calls[span_of(node)] = node
        self.parts(node)

    def _note_read(self, name: str) -> None:
        self._read.setdefault(name, set()).update(_names(self._tests))

    # -- answers, once the whole method is read

    def reads_more_under(self, place: Span) -> tuple[str, ...]:
        """Return the names that decide whether a later item of a call's result is read, if training leaves them on."""
        results = (name for name, places in self._results.items() if place in places)
        tested = set[str]().union(*(self._read.get(name, ()) for name in results))
        return tuple(sorted(name for name in tested if self.off.get(name, place.line) >= place.line))

    def idle(self, place: Span) -> tuple[int, ...]:
        """Return the positions of arguments that hold no cache in training unless the method was called with one."""
        call = self._calls.get(place)
        values = values_of(call) if call else []
        guarded = any(_CACHE_WORD in name for name in (*self.off, *self._off_by_default))
        idle: list[int] = []
        for position, value in enumerate(values):
            sources = list(self._sources(value, (), set()))
            if (guarded or sources) and all(self._is_off(tests, line) for tests, line in sources):
                idle.append(position)
        return tuple(idle)

    def _sources(self, value: ast.expr, tests: _Tests, seen: set[str]) -> Iterator[tuple[_Tests, int]]:
        """Yield the tests and the line under which each value is made that an expression may have."""
        match value:
            case ast.Name(id=name) if name not in seen:
                seen.add(name)
                for given in self._assigned.get(name, ()):
                    parts = map(ast.Name, _names([given.value])) if given.is_item else iter([given.value])
                    for part in parts:
                        yield from self._sources(part, (*tests, *given.tests), seen)
            case ast.Name() | ast.Constant():
                return
            case ast.Subscript(value=inner) | ast.Attribute(value=inner) | ast.Starred(value=inner):
                yield from self._sources(inner, tests, seen)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                yield from self._sources(body, (*tests, test), seen)
                yield from self._sources(orelse, tests, seen)
            case ast.BoolOp(values=values):
                for inner in values:
                    yield from self._sources(inner, tests, seen)
            case _:
                # a list of None holds no cache: `[None] * n`, `tuple([None] * n)`
                lists = [node for node in walk(value) if isinstance(node, _DISPLAYS)]
                if not lists or any(ast.unparse(node) != "[None]" for node in lists):
                    yield tests, value.lineno

    def _is_off(self, tests: _Tests, line: int) -> bool:
        """Tell whether a line under these tests does not run in training."""
        names = _names(tests)
        return (
            any(map(_is_false_in_training, tests))
            or any(self.off.get(name, line) < line for name in names)
            or bool(names & self._off_by_default)
        )


def _is_true_in_training(test: ast.expr) -> bool:
    """Tell whether a test is true when a model trains, or trains under checkpointing."""
    match test:
        case ast.BoolOp(op=ast.And(), values=values):
            return any(map(_is_true_in_training, values))
        case ast.UnaryOp() | ast.BoolOp() | ast.Compare():
            return False
    text = ast.unparse(test)
    return "checkpointing" in text or text.endswith("training")


def _is_false_in_training(test: ast.expr) -> bool:
    """Tell whether a test is `not self.training`, or true only with that."""
    match test:
        case ast.BoolOp(op=ast.And(), values=values):
            return any(map(_is_false_in_training, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _is_true_in_training(operand) and not isinstance(operand, ast.BoolOp)
        case ast.IfExp(test=inner, orelse=ast.Constant(value=False)):
            return _is_false_in_training(inner)
    return False


def _names(expressions: Iterable[ast.expr]) -> set[str]:
    """Return the names and attributes in expressions, except those that are called."""
    mentioned: set[str] = set()
    for expression in expressions:
        nodes = walk(expression)
        callees = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        names = (node for node in nodes if isinstance(node, ast.Name | ast.Attribute) and id(node) not in callees)
        mentioned.update(text for node in names if (text := dotted(node)))
    return mentioned
