"""Find the class, function or call that a repair changes, and rebuild only the nodes on the path to it.

A visitor that enters every node of a modeling file takes most of a second. Here a transformer asks for the path to its
target, and only the nodes on that path are rebuilt: all others stay the same, to the byte.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeAlias, TypeVar

import libcst as cst

from ckpt_surgery.codemods.repair import Definition, Occurrence
from ckpt_surgery.errors import CkptSurgeryError

Path: TypeAlias = tuple[cst.CSTNode, ...]
"""The nodes around a node, from the module inwards."""
_Node = TypeVar("_Node", bound=cst.CSTNode)

STATEMENTS = (cst.BaseStatement, cst.Else, cst.ExceptHandler, cst.ExceptStarHandler, cst.Finally, cst.MatchCase)
"""Nodes that begin a line of their own."""
_DEFINITIONS = (cst.ClassDef, cst.FunctionDef)
_HOLDERS = (*STATEMENTS, cst.BaseSuite)
"""Nodes that may contain a class, a function or another statement."""
_SPACE = (cst.BaseParenthesizableWhitespace, cst.TrailingWhitespace, cst.EmptyLine)
_CLOSED = (*_SPACE, cst.Comma, cst.Dot, cst.AssignEqual, cst.Name, cst.FormattedString)
"""Nodes that are not searched for expressions: those in f-strings do not count."""
_TAB = 4
"""The columns that formatters count for a tab."""
_BLANK = cst.Module([])


class PlaceError(CkptSurgeryError, ValueError):
    """The target of a transformer is not in the module, or has a form that cannot be changed."""


class ModuleTransformer(cst.CSTTransformer):
    """A transformer of whole modules."""

    def transform_module(self, tree: cst.Module) -> cst.Module:
        """Return the changed module; the given one stays as it was.

        Raises:
            PlaceError: the module does not contain the target.
        """
        return cst.ensure_type(self._changed(tree), cst.Module)

    @abstractmethod
    def _changed(self, tree: cst.Module) -> cst.CSTNode: ...

    def visit_Module(self, node: cst.Module) -> bool:
        """Skip the nodes inside: the module is changed as a whole."""
        return False

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        """Return the module after the change."""
        return self.transform_module(updated_node)


def definition_in(tree: cst.Module, target: Definition, *kinds: type[_Node]) -> tuple[Path, _Node]:
    """Return a class or function of one of these kinds, and the path to it.

    Raises:
        PlaceError: the module has no such class or function.
    """
    for around, node in islice(_definitions((tree,), target.name.split(".")), target.index, None):
        if isinstance(node, kinds):
            return around, node
        break
    raise PlaceError(f"{target.name} is not in the module: name a class or function that it defines")


def _definitions(around: Path, names: list[str]) -> Iterator[tuple[Path, cst.CSTNode]]:
    """Yield the classes and functions of a qualified name in the last node of a path."""
    name, *inner = names
    for child in around[-1].children:
        if not isinstance(child, _DEFINITIONS):
            yield from _definitions((*around, child), names) if isinstance(child, _HOLDERS) else ()
        elif child.name.value == name:
            yield from _definitions((*around, child), inner) if inner else [(around, child)]


def occurrence_in(
    tree: cst.Module,
    target: Occurrence,
    kind: type[_Node],
    what: str,
    counts: Callable[[Path, _Node], bool] | None = None,
) -> tuple[Path, _Node]:
    """Return the target's node of this kind, if only those are counted that `counts` accepts, and the path to it.

    Raises:
        PlaceError: the module has no such node.
    """
    around: Path = (tree,)
    if target.definition.name:
        outer, definition = definition_in(tree, target.definition, *_DEFINITIONS)
        around = (*outer, definition)
    occurrences = (item for item in inside(around, kind) if counts is None or counts(*item))
    for item in islice(occurrences, target.index, None):
        return item
    where = target.definition.name or "the module"
    raise PlaceError(f"there is no {f'{what} {target.code}'.strip()} number {target.index} in {where}")


def inside(around: Path, kind: type[_Node]) -> Iterator[tuple[Path, _Node]]:
    """Yield the nodes of a kind inside the last node of a path, in source order, each with the path to it."""
    of_statements = issubclass(kind, cst.BaseStatement)
    for child in around[-1].children:
        if isinstance(child, kind):
            yield around, child
        if isinstance(child, _HOLDERS) if of_statements else not isinstance(child, _CLOSED):
            yield from inside((*around, child), kind)


def replaced(around: Path, old: cst.CSTNode, *new: cst.CSTNode) -> cst.CSTNode:
    """Return the first node of a path, rebuilt with any number of `new` nodes in place of `old` at its end."""
    for parent in reversed(around):
        changes: dict[str, object] = {}
        for name in parent.__dataclass_fields__:
            value = getattr(parent, name)
            if value is old:
                (changes[name],) = new
            elif isinstance(value, list | tuple) and old in value:
                at = value.index(old)
                changes[name] = [*value[:at], *new, *value[at + 1 :]]
        old, new = parent, (parent.with_changes(**changes),)
    return new[0]


def margin_of(around: Path, step: str) -> int:
    """Return the indentation of the node at the end of a path, in columns; `step` is that of one level."""
    blocks = (node for node in around if isinstance(node, cst.IndentedBlock))
    return sum(columns(step if block.indent is None else block.indent) for block in blocks)


def columns(text: str) -> int:
    """Return the width of a text that begins a line."""
    return len(text.expandtabs(_TAB))


def leading_lines(node: cst.CSTNode) -> list[cst.EmptyLine]:
    """Return the blank lines and comments above a statement."""
    return list(getattr(node, "leading_lines", ()))


def code_of(node: cst.CSTNode) -> str:
    """Return the code of a node, as if it stood at module level."""
    return _BLANK.code_for_node(node)


def squeezed(node: cst.BaseExpression) -> str:
    """Return the code of an expression without white space and without parentheses around it."""
    return "".join(code_of(node.with_changes(lpar=(), rpar=())).split())
