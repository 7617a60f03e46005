"""Find where a forward reads past state that may be None, or that another block wrote."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from ckpt_surgery.codemods.facts.interpreter import Interpreter
from ckpt_surgery.codemods.facts.syntax import dotted, walk
from ckpt_surgery.model_patches.release_names import CACHE_SWITCH

_OWN_INDEX = frozenset(
    {"self.idx", "self.index", "self.layer_id", "self.layer_idx", "self.layer_index", "self.layer_number"}
)


class CacheRead(NamedTuple):
    """A method whose read of past state goes wrong once a layer has set that to None.

    It fails, because nothing tests whether there is any, or no longer finds what another block `shared` there.
    """

    method: str
    name: str
    shared: bool


def cache_reads(methods: Mapping[str, ast.FunctionDef], names: Collection[str]) -> Iterator[CacheRead]:
    """Yield the reads of these parameters in a forward, and in other methods with a parameter of that name."""
    for function in methods.values():
        given = {node.arg for node in walk(function.args) if isinstance(node, ast.arg)} & set(names)
        for name in sorted(given) if function.name != "__init__" else ():
            reader = _PastStateReader(name)
            reader.follow(function.body)
            needed = reader.needed and function.name == "forward"
            if needed or reader.shared:
                yield CacheRead(function.name, name, shared=not needed)


class _PastStateReader(Interpreter[None]):
    """Reads one method for one name, without following values."""

    nothing = None

    def __init__(self, name: str) -> None:
        super().__init__()
        self.needed = False
        self.shared = False
        self._is_made = False
        """Whether the method has by now made past state, at least if there was none."""
        self._name = name
        self._related: set[str] = {name, CACHE_SWITCH}
        """Names that hold the past state, the outcome of a test of it, or part of it."""

    def join(self, values: Sequence[None]) -> None:
        """Ignore the values: none is followed."""

    def _is_guarded(self) -> bool:
        return bool(self.tries) or self._is_made or any(self._is_about_state(each.test) for each in self.conditions)

    def _is_about_state(self, test: ast.expr) -> bool:
        """Tell whether a test is about the past state, or about whether any is wanted."""
        return any(isinstance(node, ast.Name) and node.id in self._related for node in walk(test))

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        """Note past state that is unpacked, and a name that is bound to part of it or to a test of it."""
        if isinstance(target, ast.Tuple | ast.List) and dotted(value) == self._name and not self._is_guarded():
            self.needed = True
        super().assign(target, value)
        if isinstance(target, ast.Name) and self._is_about_state(value):
            self._related.add(target.id)

    def bind(self, target: ast.expr, value: None) -> None:
        """Note that the past state is replaced, or something in it is set."""
        if isinstance(target, ast.Attribute | ast.Subscript):
            self.value(target)
        elif dotted(target) == self._name:
            self._is_made |= all(self._is_about_state(each.test) for each in self.conditions)

    def attribute(self, node: ast.Attribute, base: None) -> None:
        self._note_read(node)

    def subscript(self, node: ast.Subscript) -> None:
        """Note a read or write at an index of the past state."""
        self._note_read(node)
        super().subscript(node)
        if dotted(node.value).partition(".")[0] == self._name and dotted(node.slice) not in _OWN_INDEX:
            attributes = [dotted(part) for part in walk(node.slice) if isinstance(part, ast.Attribute)]
            self.shared |= any(name.startswith("self.") for name in attributes)

    def _note_read(self, node: ast.Attribute | ast.Subscript) -> None:
        if isinstance(node.value, ast.Name) and node.value.id == self._name and not self._is_guarded():
            self.needed = True
