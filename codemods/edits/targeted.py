"""How a transformer reaches what it changes: down the named class and function, past everything else.

A visitor that enters every node of a modeling file takes most of a second; nodes outside the target come back as they
are, to the byte.
"""

from __future__ import annotations

import libcst as cst

from ckpt_surgery.codemods.repair import Definition, Occurrence
from ckpt_surgery.errors import CkptSurgeryError

DEFINITIONS = (cst.ClassDef, cst.FunctionDef)
HOLDERS = (
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
)
"""What may hold a class or function besides another one."""
_TAB = 4
"""Columns of a tab, as formatters count it."""
SILENT: frozenset[type[cst.CSTNode]] = frozenset(
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
    }
)
"""What holds no name and no call. Most nodes are of these types, which are asked for before anything else."""


class PlaceError(CkptSurgeryError, ValueError):
    """What a transformer is to change is not in the module, or is not of the form that it can change."""


class ModuleTransformer(cst.CSTTransformer):
    """A transformer of whole modules."""

    def transform_module(self, tree: cst.Module) -> cst.Module:
        """The module after the change; the one that was given is not changed.

        Raises:
            PlaceError: the module does not have what is to be changed.
        """
        return tree.visit(self)


class TargetedTransformer(ModuleTransformer):
    """Visits one class or function, itself included, and on the way to it only what may hold it."""

    def __init__(self, definition: Definition) -> None:
        super().__init__()
        self.definition = definition
        self._scope: list[str] = []
        self._seen = 0
        self._inside = not definition.name
        self._reached = self._inside

    @property
    def at_target(self) -> bool:
        """Whether the class or function being visited is the target itself, not one inside it."""
        return ".".join(self._scope) == self.definition.name

    def transform_module(self, tree: cst.Module) -> cst.Module:
        """The module after the change.

        Raises:
            PlaceError: the module has no such class or function, or not in it what is to be changed.
        """
        changed = super().transform_module(tree)
        if not self._reached:
            raise PlaceError(f"{self.definition.name} is not in the module: name a class or function that it defines")
        return changed

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Whether to go on inside a node."""
        if not isinstance(node, DEFINITIONS):
            return super().on_visit(node) if self._inside else isinstance(node, (cst.Module, *HOLDERS))
        self._scope.append(node.name.value)
        name = ".".join(self._scope)
        if not self._reached and name == self.definition.name:
            self._inside = self._reached = self._seen == self.definition.index
            self._seen += 1
        if self._inside:
            return super().on_visit(node)
        return self.definition.name.startswith(f"{name}.") and not self._reached

    def on_leave(
        self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT
    ) -> cst.CSTNodeT | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNodeT]:
        """What takes the place of a node: itself, unless it is in the target."""
        left = super().on_leave(original_node, updated_node) if self._inside else updated_node
        if isinstance(original_node, DEFINITIONS):
            if self._inside and self.at_target:
                self._inside = False
            self._scope.pop()
        return left


class OccurrenceTransformer(TargetedTransformer):
    """Finds one call, name or `if` of its target. What is in f-strings does not count.

    Nodes of the types in `silent` are not entered. `margin` is the indentation of what is being visited, in columns,
    and `step` that of one level of the file.
    """

    silent = SILENT

    def __init__(self, occurrence: Occurrence, what: str) -> None:
        super().__init__(occurrence.definition)
        self.occurrence = occurrence
        self.found: cst.CSTNode | None = None
        self._what = what
        self._count = 0
        self._passed = False
        self.margin = 0
        self.step = ""

    def transform_module(self, tree: cst.Module) -> cst.Module:
        """The module after the change.

        Raises:
            PlaceError: the module has no such target, or the target no such occurrence.
        """
        changed = super().transform_module(tree)
        if self.found is None:
            where = f"in {self.definition.name}" if self.definition.name else "in the module"
            what = f"{self._what} {self.occurrence.code}".strip()
            raise PlaceError(f"there is no {what} number {self.occurrence.index} {where}")
        return changed

    def visit_FormattedString(self, node: cst.FormattedString) -> bool:
        """Not entered."""
        return False

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Whether to go on inside a node: not where nothing can be found, or the occurrence has been."""
        if type(node) in self.silent:
            return False
        if isinstance(node, cst.Module):
            self.step = node.default_indent
        elif isinstance(node, cst.IndentedBlock):
            self.margin += indentation(node, self.step)
        return super().on_visit(node) and not self._passed

    def on_leave(
        self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT
    ) -> cst.CSTNodeT | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNodeT]:
        """What takes the place of a node."""
        if type(original_node) in self.silent:
            return updated_node
        self._passed = self._passed or original_node is self.found
        left = super().on_leave(original_node, updated_node)
        if isinstance(original_node, cst.IndentedBlock):
            self.margin -= indentation(original_node, self.step)
        return left

    def matches(self, node: cst.CSTNode, code: cst.CSTNode | None = None) -> None:
        """Count a node whose `code` is that of the occurrence; without a `code`, any node."""
        if self.found is None and (code is None or self._is_code(code)):
            if self._count == self.occurrence.index:
                self.found = node
            self._count += 1

    def _is_code(self, node: cst.CSTNode) -> bool:
        """Whether a node's code is that of the occurrence. Most are told by their last name, without writing code."""
        wanted = self.occurrence.code
        if isinstance(node, cst.Name):
            return node.value == wanted
        if isinstance(node, cst.Attribute) and not wanted.endswith(node.attr.value):
            return False
        return squeezed(node) == wanted


def squeezed(node: cst.CSTNode) -> str:
    """A node's code without white space and without parentheses around it."""
    if isinstance(node, cst.BaseExpression):
        node = node.with_changes(lpar=(), rpar=())
    return "".join(code_of(node).split())


def indentation(block: cst.IndentedBlock, step: str) -> int:
    """How many columns a block is indented beyond what it is in, where `step` is usual."""
    return columns(step if block.indent is None else block.indent)


def columns(text: str) -> int:
    """How wide a text is that begins a line."""
    return len(text.expandtabs(_TAB))


def leading_lines(node: cst.CSTNode) -> list[cst.EmptyLine]:
    """The blank lines and comments above a statement."""
    return list(getattr(node, "leading_lines", ()))


_BLANK = cst.Module([])


def code_of(node: cst.CSTNode) -> str:
    """The code of a node, as if it stood at module level."""
    return _BLANK.code_for_node(node)
