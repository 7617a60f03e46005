"""Where a forward reads its past state although it may be None, or reads what another block put there."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ckpt_surgery.codemods.facts.syntax import dotted, walk
from ckpt_surgery.model_patches.release_names import CACHE_SWITCH

_OWN_INDEX = frozenset(
    {"self.idx", "self.index", "self.layer_id", "self.layer_idx", "self.layer_index", "self.layer_number"}
)
_ENDS = (ast.Return, ast.Raise, ast.Continue)


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
        if function.name == "__init__" or not given:
            continue
        for name in sorted(given):
            reader = _PastStateReader(name)
            reader.block(function.body, guarded=False)
            if reader.needed and function.name == "forward":
                yield CacheRead(function.name, name, ReadKind.NEEDED)
            elif reader.shared or (reader.keyed and reader.counted):
                yield CacheRead(function.name, name, ReadKind.SHARED)


@dataclass(slots=True)
class _PastStateReader:
    """Reads one method for one name."""

    name: str
    needed: bool = False
    shared: bool = False
    keyed: bool = False
    """Whether it holds something of each block: the forward adds its own, or sets it at its own number."""
    counted: bool = False
    """Whether an item is read whose number is written out."""
    asked: set[str] = field(default_factory=set)
    """Names that hold the outcome of a test of the past state, or part of it."""

    def block(self, statements: Iterable[ast.stmt], *, guarded: bool) -> None:
        """Read statements from top to bottom; behind a test that leaves, the rest is guarded."""
        for statement in statements:
            self._statement(statement, guarded=guarded)
            guarded = guarded or self._settles(statement)

    def _statement(self, statement: ast.stmt, *, guarded: bool) -> None:
        match statement:
            case ast.If(test=test, body=body, orelse=orelse) | ast.While(test=test, body=body, orelse=orelse):
                self._expression(test, guarded=guarded)
                inner = guarded or self._asks(test)
                self.block(body, guarded=inner)
                self.block(orelse, guarded=inner)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return
            case ast.Try():
                for part in (statement.body, statement.orelse, statement.finalbody):
                    self.block(part, guarded=True)
                for handler in statement.handlers:
                    self.block(handler.body, guarded=True)
            case ast.Assign(targets=targets, value=value):
                self._expression(value, guarded=guarded)
                for target in targets:
                    self._expression(target, guarded=guarded)
                unpacks = any(isinstance(target, ast.Tuple | ast.List) for target in targets)
                if unpacks and dotted(value) == self.name and not guarded:
                    self.needed = True
                if self._asks(value):
                    self.asked.update(target.id for target in targets if isinstance(target, ast.Name))
            case _:
                for _, value in ast.iter_fields(statement):
                    for inner in value if isinstance(value, list) else [value]:
                        if isinstance(inner, ast.expr):
                            self._expression(inner, guarded=guarded)
                        elif isinstance(inner, ast.stmt):
                            self._statement(inner, guarded=guarded)
                        elif isinstance(inner, ast.match_case):
                            self.block(inner.body, guarded=True)

    def _expression(self, node: ast.expr, *, guarded: bool) -> None:
        match node:
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self._expression(test, guarded=guarded)
                guarded = guarded or self._asks(test)
                self._expression(body, guarded=guarded)
                self._expression(orelse, guarded=guarded)
                return
            case ast.BoolOp(values=values):
                for operand in values:
                    self._expression(operand, guarded=guarded)
                    guarded = guarded or self._asks(operand)
                return
            case ast.Attribute(value=ast.Name(id=name)) | ast.Subscript(value=ast.Name(id=name)) if name == self.name:
                self.needed |= not guarded
            case ast.Lambda():
                return
        match node:
            case ast.Subscript(value=value, slice=index) if self._roots(value):
                self.shared |= _is_of_another(index)
                self.keyed |= isinstance(node.ctx, ast.Store) and dotted(index) in _OWN_INDEX
                self.counted |= isinstance(node.ctx, ast.Load) and isinstance(index, ast.Constant | ast.UnaryOp)
            case ast.Call(func=ast.Attribute(value=value, attr="append")) if self._roots(value):
                self.keyed = True
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.expr):
                self._expression(inner, guarded=guarded)
            elif isinstance(inner, ast.keyword):
                self._expression(inner.value, guarded=guarded)
            elif isinstance(inner, ast.comprehension):
                self._expression(inner.iter, guarded=guarded)

    def _asks(self, test: ast.expr) -> bool:
        """Whether a test is about the past state, or about whether any is wanted."""
        names = {node.id for node in walk(test) if isinstance(node, ast.Name)}
        return bool(names & {self.name, CACHE_SWITCH, *self.asked})

    def _settles(self, statement: ast.stmt) -> bool:
        """Whether the past state is there behind a statement: `if cache is None: cache = ...`."""
        match statement:
            case ast.If(test=test, body=body) if self._asks(test):
                leaves = isinstance(body[-1], _ENDS)
                return leaves or any(self._binds(inner) for inner in body)
        return self._binds(statement)

    def _binds(self, statement: ast.stmt) -> bool:
        targets = statement.targets if isinstance(statement, ast.Assign) else ()
        names = (node.id for target in targets for node in walk(target) if isinstance(node, ast.Name))
        return self.name in names

    def _roots(self, node: ast.expr) -> bool:
        """Whether an expression is the past state, or an attribute of it."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id == self.name


def _is_of_another(index: ast.expr) -> bool:
    """Whether an index is made of attributes of the block, and is not its own number."""
    own = [dotted(node) for node in walk(index) if isinstance(node, ast.Attribute)]
    attributes = [name for name in own if name.startswith("self.")]
    return bool(attributes) and dotted(index) not in _OWN_INDEX
