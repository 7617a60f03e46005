"""Where a forward reads its past state although it may be None, or reads what another block put there."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from ckpt_surgery.codemods.facts.interpreter import Interpreter
from ckpt_surgery.codemods.facts.syntax import dotted, walk
from ckpt_surgery.model_patches.release_names import CACHE_SWITCH

_OWN_INDEX = frozenset(
    {"self.idx", "self.index", "self.layer_id", "self.layer_idx", "self.layer_index", "self.layer_number"}
)


class ReadKind(Enum):
    """What goes wrong with a read where a layer has set the past state to None."""

    NEEDED = "needed"
    """It fails: nothing asks whether there is any."""
    SHARED = "shared"
    """What another block computed would be computed otherwise."""


class CacheRead(NamedTuple):
    """A method that reads past state."""

    method: str
    name: str
    kind: ReadKind


def cache_reads(methods: Mapping[str, ast.FunctionDef], names: Collection[str]) -> Iterator[CacheRead]:
    """The reads of a forward, and of methods that have a parameter of the same name, by these parameter names."""
    for function in methods.values():
        given = {node.arg for node in walk(function.args) if isinstance(node, ast.arg)} & set(names)
        for name in sorted(given) if function.name != "__init__" else ():
            reader = _PastStateReader(name)
            reader.follow(function.body)
            if reader.needed and function.name == "forward":
                yield CacheRead(function.name, name, ReadKind.NEEDED)
            elif reader.shared or (reader.keyed and reader.counted):
                yield CacheRead(function.name, name, ReadKind.SHARED)


class _PastStateReader(Interpreter[bool]):
    """Reads one method for one name. A value tells whether it is the outcome of a test of the past state.

    The past state itself is True once it is surely there: `if cache is None: cache = ...`.
    """

    nothing = False

    def __init__(self, name: str) -> None:
        super().__init__({name: False})
        self.needed = False
        self.shared = False
        self.keyed = False
        """Whether it holds something of each block: the forward adds its own, or sets it at its own number."""
        self.counted = False
        """Whether an item is read whose number is written out."""
        self._name = name
        self._asked: set[str] = {name, CACHE_SWITCH}
        """Names that hold the past state, the outcome of a test of it, or part of it."""
        self._bound: set[int] = set()
        """The `if` statements that test the past state, and bind it where it is not there."""

    def join(self, values: Sequence[bool]) -> bool:
        """The past state is there where it is on each way."""
        return all(values)

    def _is_guarded(self) -> bool:
        return bool(self.tries) or self.env[self._name] or any(self._asks(each.test) for each in self.conditions)

    def _asks(self, test: ast.expr) -> bool:
        """Whether a test is about the past state, or about whether any is wanted."""
        return any(isinstance(node, ast.Name) and node.id in self._asked for node in walk(test))

    def side(self, node: ast.If, truth: bool) -> bool:
        """Follow one side of an `if`: past state that the other side makes is there behind both."""
        before = self.env[self._name]
        ended = super().side(node, truth)
        if truth and self.env[self._name] and not before and self._asks(node.test):
            self._bound.add(id(node))
        elif not truth and id(node) in self._bound:
            self.env[self._name] = True
        return ended

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        """Note a name for the outcome of a test, and past state that is unpacked."""
        if isinstance(target, ast.Tuple | ast.List) and dotted(value) == self._name and not self._is_guarded():
            self.needed = True
        super().assign(target, value)
        if isinstance(target, ast.Name) and self._asks(value):
            self._asked.add(target.id)

    def bind(self, target: ast.expr, value: bool) -> None:
        """Note that the past state is set, or something in it."""
        if any(isinstance(node, ast.Name) and node.id == self._name for node in walk(target)):
            self.env[self._name] = self.env[self._name] or not isinstance(target, ast.Attribute | ast.Subscript)
        if isinstance(target, ast.Attribute | ast.Subscript):
            self.value(target)

    def attribute(self, node: ast.Attribute, base: bool) -> bool:
        """Note a read that fails without past state."""
        self._note_read(node)
        return False

    def subscript(self, node: ast.Subscript) -> bool:
        """Note what is read or set at an index of the past state."""
        self._note_read(node)
        super().subscript(node)
        if self._roots(node.value):
            index, is_read = node.slice, isinstance(node.ctx, ast.Load)
            self.shared |= _is_of_another(index)
            self.keyed |= not is_read and dotted(index) in _OWN_INDEX
            self.counted |= is_read and isinstance(index, ast.Constant | ast.UnaryOp)
        return False

    def call(self, node: ast.Call) -> bool:
        """Note that a block adds its own."""
        self.parts(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "append" and self._roots(node.func.value):
            self.keyed = True
        return False

    def _note_read(self, node: ast.Attribute | ast.Subscript) -> None:
        if isinstance(node.value, ast.Name) and node.value.id == self._name and not self._is_guarded():
            self.needed = True

    def _roots(self, node: ast.expr) -> bool:
        """Whether an expression is the past state, or an attribute of it."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id == self._name


def _is_of_another(index: ast.expr) -> bool:
    """Whether an index is made of attributes of the block, and is not its own number."""
    own = [dotted(node) for node in walk(index) if isinstance(node, ast.Attribute)]
    return any(name.startswith("self.") for name in own) and dotted(index) not in _OWN_INDEX
