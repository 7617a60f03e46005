"""Where a file puts another forward in the place of one: on a class of transformers, or on the blocks of a stack."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ckpt_surgery.codemods.facts.fact import FileFact
from ckpt_surgery.codemods.facts.file_syntax import FileSyntax
from ckpt_surgery.codemods.facts.syntax import Span, dotted, span_of

_ASSIGNED = re.compile(r"\.forward\s*=[^=]")
_STACKS = frozenset({"layers", "h", "blocks", "block", "layer"})


@dataclass(frozen=True, slots=True)
class ForwardPatch:
    """One assignment to `target`.forward. Those whose file reads the old forward are left out: they may call it.

    `module` is where the file imports the first name of `target` from, empty where it does not. `stack` is the
    expression that is looped over, where `target` is the variable of the loop.
    """

    target: str
    module: str
    stack: str
    span: Span
    first_line: int
    scope: str


def _forward_patches(file: FileSyntax) -> tuple[ForwardPatch, ...]:
    """The patches in a file that has to do with transformers."""
    source = file.source
    if "transformers" not in source and "modeling_" not in source:
        return ()
    if "setattr(" not in source and not _ASSIGNED.search(source):
        return ()
    reader = _PatchReader()
    reader.visit(file.tree)
    return tuple(
        ForwardPatch(patch.target, reader.imported.get(patch.target.partition(".")[0], ""), *patch.rest)
        for patch in reader.patches
        if (patch.scope, patch.target) not in reader.read and ("", patch.target) not in reader.read
    )


@dataclass(frozen=True, slots=True)
class _Patch:
    target: str
    scope: str
    rest: tuple[str, Span, int, str]


class _PatchReader(ast.NodeVisitor):
    def __init__(self) -> None:
        self.patches: list[_Patch] = []
        self.imported: dict[str, str] = {}
        self.read: set[tuple[str, str]] = set()
        self._scope: list[str] = []
        self._loops: dict[str, str] = {}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self.imported[alias.asname or alias.name] = "." * node.level + (node.module or "")

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.imported[alias.asname or alias.name.partition(".")[0]] = alias.name

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._inside(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._inside(node)

    def visit_For(self, node: ast.For) -> None:
        before = dict(self._loops)
        self._loops.update(_loop_variables(node.target, node.iter))
        self.generic_visit(node)
        self._loops = before

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr == "forward" and isinstance(node.ctx, ast.Load):
            self._note_read(dotted(node.value))
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Attribute) and target.attr == "forward" and _is_function(node.value):
                self._note(dotted(target.value), node, span_of(target))

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="setattr"), args=[owner, ast.Constant(value="forward"), value]) if (
                _is_function(value)
            ):
                self._note(dotted(owner), node, span_of(node))
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value="forward"), *_]):
                self._note_read(dotted(owner))

    def visit_Subscript(self, node: ast.Subscript) -> None:
        match node:
            case ast.Subscript(value=ast.Attribute(value=owner, attr="__dict__"), slice=ast.Constant(value="forward")):
                self._note_read(dotted(owner))
        self.generic_visit(node)

    def _inside(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self._scope.append(node.name)
        self.generic_visit(node)
        self._scope.pop()

    def _note(self, target: str, node: ast.Assign | ast.Call, span: Span) -> None:
        scope = ".".join(self._scope)
        if target and target != "self":
            self.patches.append(_Patch(target, scope, (self._loops.get(target, ""), span, node.lineno, scope)))

    def _note_read(self, target: str) -> None:
        # a function may read it for those around it
        for end in range(len(self._scope) + 1):
            self.read.add((".".join(self._scope[:end]), target))


def _is_function(value: ast.expr) -> bool:
    """Whether a value is a function, bound or not: what is made by another call may call the old forward."""
    match value:
        case ast.Name() | ast.Attribute() | ast.Lambda():
            return True
        case ast.Call(func=ast.Name(id="MethodType") | ast.Attribute(attr="MethodType" | "__get__")):
            return True
    return False


def _loop_variables(target: ast.expr, looped: ast.expr) -> Iterator[tuple[str, str]]:
    """The variable that goes through a stack of blocks, and the stack."""
    match target, looped:
        case ast.Tuple(elts=[_, ast.Name() as variable]), ast.Call(func=ast.Name(id="enumerate"), args=[stack, *_]):
            pass
        case ast.Name() as variable, stack:
            pass
        case _:
            return
    name = dotted(stack)
    yield variable.id, name if name.rpartition(".")[2] in _STACKS else ""


FORWARD_PATCHES = FileFact[tuple[ForwardPatch, ...]]("forward_patches", _forward_patches, nothing=())
