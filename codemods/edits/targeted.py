"""How a transformer reaches what it changes: down the named class and function, past everything else.

A visitor that enters every node of a modeling file takes most of a second. Here a transformer asks for the path to its
target, and only the nodes on it are made anew: all others stay what they are, to the byte.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from typing import TypeAlias

import libcst as cst

from ckpt_surgery.codemods.repair import Definition, Occurrence
from ckpt_surgery.errors import CkptSurgeryError

Path: TypeAlias = tuple[cst.CSTNode, ...]
"""A node and all that is around it, the module first."""

_DEFINITIONS = (cst.ClassDef, cst.FunctionDef)
_HOLDERS: frozenset[type[cst.CSTNode]] = frozenset(
    {
        *_DEFINITIONS,
        cst.IndentedBlock,
        cst.If,
        cst.Else,
        cst.Try,
        cst.TryStar,
        cst.ExceptHandler,
        cst.ExceptStarHandler,
        cst.Finally,
        cst.With,
        cst.For,
        cst.While,
        cst.Match,
        cst.MatchCase,
    }
)
"""What may hold a class, a function or an `if`."""
_STATEMENTS = (
    cst.BaseStatement,
    cst.Else,
    cst.ExceptHandler,
    cst.ExceptStarHandler,
    cst.Finally,
    cst.MatchCase,
)
"""What begins a line of its own."""
_CLOSED: frozenset[type[cst.CSTNode]] = frozenset(
    {
        cst.SimpleWhitespace,
        cst.ParenthesizedWhitespace,
        cst.TrailingWhitespace,
        cst.EmptyLine,
        cst.Comma,
        cst.Dot,
        cst.AssignEqual,
        cst.LeftParen,
        cst.RightParen,
        cst.LeftSquareBracket,
        cst.RightSquareBracket,
        cst.SimpleString,
        cst.Integer,
        cst.Float,
        cst.Name,
        cst.FormattedString,
    }
)
"""What is not entered to look for an expression. Most nodes are of these types."""
_TAB = 4
"""Columns of a tab, as formatters count it."""
_BLANK = cst.Module([])


class PlaceError(CkptSurgeryError, ValueError):
    """What a transformer is to change is not in the module, or is not of the form that it can change."""


class ModuleTransformer(cst.CSTTransformer):
    """A transformer of whole modules."""

    def transform_module(self, tree: cst.Module) -> cst.Module:
        """The module after the change; the one that was given is not changed.

        Raises:
            PlaceError: the module does not have what is to be changed.
        """
        return cst.ensure_type(self._changed(tree), cst.Module)

    @abstractmethod
    def _changed(self, tree: cst.Module) -> cst.CSTNode: ...

    def visit_Module(self, node: cst.Module) -> bool:
        """Not entered: it is changed as a whole."""
        return False

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        """The module after the change."""
        return self.transform_module(updated_node)


def definition_in(tree: cst.Module, target: Definition, kind: type[cst.CSTNode] | None = None) -> Path:
    """The path to a class or function, which is of a `kind`; the module alone for a target without a name.

    Raises:
        PlaceError: the module has no such class or function.
    """
    if not target.name:
        return (tree,)
    path = next(islice(_definitions(tree, target.name.split(".")), target.index, None), None)
    if path is None or not isinstance(path[-1], kind or _DEFINITIONS):
        raise PlaceError(f"{target.name} is not in the module: name a class or function that it defines")
    return (tree, *path)


def _definitions(node: cst.CSTNode, names: list[str]) -> Iterator[Path]:
    """The classes and functions of a qualified name inside a node."""
    name, *inner = names
    for child in node.children:
        if isinstance(child, _DEFINITIONS):
            if child.name.value == name:
                yield from ((child, *path) for path in _definitions(child, inner)) if inner else [(child,)]
        elif type(child) in _HOLDERS:
            yield from ((child, *path) for path in _definitions(child, names))


def inside(around: Path, kind: type[cst.CSTNode]) -> Iterator[Path]:
    """The nodes of a kind inside the last node of a path, in source order. What is in f-strings does not count."""
    for child in around[-1].children:
        path = (*around, child)
        if isinstance(child, kind):
            yield path
        if type(child) in _HOLDERS if issubclass(kind, cst.BaseStatement) else type(child) not in _CLOSED:
            yield from inside(path, kind)


def chosen(paths: Iterable[Path], target: Occurrence, what: str) -> Path:
    """The one of these paths that an occurrence counts to.

    Raises:
        PlaceError: there are not so many.
    """
    path = next(islice(paths, target.index, None), None)
    if path is None:
        where = f"in {target.definition.name}" if target.definition.name else "in the module"
        raise PlaceError(f"there is no {f'{what} {target.code}'.strip()} number {target.index} {where}")
    return path


def is_code(node: cst.CSTNode, wanted: str) -> bool:
    """Whether a node's code is `wanted`, without white space. Most are told by a name, without writing their code."""
    if isinstance(node, cst.Name):
        return node.value == wanted
    if isinstance(node, cst.Attribute) and not wanted.endswith(node.attr.value):
        return False
    return squeezed(node) == wanted


def replaced(path: Path, *new: cst.CSTNode) -> cst.CSTNode:
    """The first node of a path after others, or none, have taken the place of the last one."""
    for old, parent in pairwise(reversed(path)):
        changes: dict[str, object] = {}
        for name in parent.__dataclass_fields__:
            value = getattr(parent, name)
            if value is old:
                (changes[name],) = new
            elif isinstance(value, list | tuple) and old in value:
                at = value.index(old)
                changes[name] = [*value[:at], *new, *value[at + 1 :]]
        new = (parent.with_changes(**changes),)
    return new[0]


def statement_of(path: Path) -> int:
    """Where on a path the innermost statement is."""
    return max(at for at, node in enumerate(path) if isinstance(node, _STATEMENTS))


def margin_of(path: Path) -> int:
    """The indentation of what a path leads to, in columns."""
    step = cst.ensure_type(path[0], cst.Module).default_indent
    return sum(indentation(block, step) for block in path if isinstance(block, cst.IndentedBlock))


def indentation(block: cst.IndentedBlock, step: str) -> int:
    """How many columns a block is indented beyond what it is in, where `step` is usual."""
    return columns(step if block.indent is None else block.indent)


def columns(text: str) -> int:
    """How wide a text is that begins a line."""
    return len(text.expandtabs(_TAB))


def leading_lines(node: cst.CSTNode) -> list[cst.EmptyLine]:
    """The blank lines and comments above a statement."""
    return list(getattr(node, "leading_lines", ()))


def below(lines: Iterable[cst.EmptyLine], node: cst.BaseStatement) -> cst.BaseStatement:
    """A statement with these lines above all that is above it."""
    return node.with_changes(leading_lines=[*lines, *leading_lines(node)])


def code_of(node: cst.CSTNode) -> str:
    """The code of a node, as if it stood at module level."""
    return _BLANK.code_for_node(node)


def squeezed(node: cst.CSTNode) -> str:
    """A node's code without white space and without parentheses around it."""
    if isinstance(node, cst.BaseExpression):
        node = node.with_changes(lpar=(), rpar=())
    return "".join(code_of(node).split())
