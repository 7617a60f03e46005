"""Find where a file assigns a forward to a module or class, and what decorates the forward of a class."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ckpt_surgery.codemods.facts.fact import ClassFact, FileFact
from ckpt_surgery.codemods.facts.file_syntax import FileSyntax, methods_of, own_statements
from ckpt_surgery.codemods.facts.syntax import (
    Span,
    assigned_names,
    called,
    dotted,
    imported_names,
    span_of,
    statements_below,
)

_ASSIGNS_FORWARD = re.compile(r"""\.forward\s*=[^=]|setattr\([^\n]*["']forward["']""")
_SETS_FORWARD = re.compile(r"forward ?=(?!=)(?:(?<=\.forward =)|(?<=\.forward=)|(?<=\s\sforward =)|(?<=\s\sforward=))")
"""An assignment to an attribute or in a class body; `forward =` alone is mostly a plain name or a keyword."""
_STACK_NAMES = frozenset({"layers", "h", "blocks", "block", "layer"})
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class ForwardPatch:
    """An assignment to `target`.forward, in a file that does not read the old forward: if it did, it might call that.

    `module` is where the file imports the first name of `target` from; empty if it does not. `stack` is what is looped
    over if `target` is the variable of a loop over a stack.
    """

    target: str
    module: str
    stack: str
    span: Span
    scope: str


class _Use(NamedTuple):
    """A forward that is assigned at a span, or read (no span); `stack` is as in ForwardPatch."""

    target: str
    scope: str
    stack: str = ""
    span: Span | None = None


def _may_patch(text: str) -> bool:
    """Tell whether a file has to do with transformers, and assigns a forward."""
    return ("transformers" in text or "modeling_" in text) and _ASSIGNS_FORWARD.search(text) is not None


def _forward_patches(file: FileSyntax) -> tuple[ForwardPatch, ...]:
    if not _may_patch(file.source):
        return ()
    imports = (imported for node in statements_below(file.tree) for imported in imported_names(node))
    modules = {name: module for name, module, _ in imports}
    uses = list(_uses(file.tree, file, "", {}))
    read = {use.target for use in uses if use.span is None}
    return tuple(
        ForwardPatch(target, modules.get(target.partition(".")[0], ""), stack, span, scope)
        for target, scope, stack, span in uses
        if span and target not in ("", "self", *read)
    )


def _uses(node: ast.AST, file: FileSyntax, scope: str, stacks: Mapping[str, str]) -> Iterator[_Use]:
    """Yield every use of a forward below a node; `stacks` maps loop variables to the stacks they run over."""
    if isinstance(node, ast.stmt) and "forward" not in file.text(node) and not getattr(node, "decorator_list", ()):
        return
    match node:
        case (
            ast.Attribute(value=owner, attr="forward", ctx=ast.Load())
            | ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value="forward"), *_])
            | ast.Subscript(value=ast.Attribute(value=owner, attr="__dict__"), slice=ast.Constant(value="forward"))
        ):
            yield _Use(dotted(owner), scope)
        case ast.Assign(targets=targets, value=value) if _is_function(value):
            for target in targets:
                if isinstance(target, ast.Attribute) and target.attr == "forward":
                    name = dotted(target.value)
                    yield _Use(name, scope, stacks.get(name, ""), span_of(target))
        case ast.Call(func=ast.Name(id="setattr"), args=[owner, ast.Constant(value="forward"), value]):
            if _is_function(value):
                yield _Use(dotted(owner), scope, stacks.get(dotted(owner), ""), span_of(node))
        case (
            ast.For(
                target=ast.Tuple(elts=[_, ast.Name(id=variable)]),
                iter=ast.Call(func=ast.Name(id="enumerate"), args=[stack, *_]),
            )
            | ast.For(target=ast.Name(id=variable), iter=stack)
        ):
            name = dotted(stack)
            stacks = {**stacks, variable: name if name.rpartition(".")[2] in _STACK_NAMES else ""}
    if isinstance(node, _SCOPES):
        scope = f"{scope}.{node.name}" if scope else node.name
    for inner in ast.iter_child_nodes(node):
        yield from _uses(inner, file, scope, stacks)


def _is_function(value: ast.expr) -> bool:
    """Tell whether a value is a function, bound or not. What any other call returns may call the old forward."""
    match value:
        case ast.Name() | ast.Attribute() | ast.Lambda():
            return True
        case ast.Call(func=ast.Name(id="MethodType") | ast.Attribute(attr="MethodType" | "__get__")):
            return True
    return False


FORWARD_PATCHES = FileFact[tuple[ForwardPatch, ...]](
    "forward_patches",
    _forward_patches,
    nothing=(),
    signs=(".forward =", ".forward=", '"forward"', "'forward'"),
    worth=_may_patch,
)


def _replaced(file: FileSyntax) -> Iterator[str]:
    for owner, name, statement in file.set_attributes:
        if owner and name == "forward" and f"{owner}.forward" not in ast.unparse(statement.value):
            yield owner
    classes = (statement for statement, _ in file.statements if isinstance(statement, ast.ClassDef))
    for cls in classes:
        if any("forward" in assigned_names(statement) for statement in own_statements(cls)):
            yield cls.name


REPLACED = FileFact[tuple[str, ...]](
    "replaced_forwards",
    lambda file: tuple(_replaced(file)),
    nothing=(),
    signs=("forward = ", "forward="),
    worth=lambda text: _SETS_FORWARD.search(text) is not None,
)
"""Classes whose forward is assigned: `FooAttention.forward = new_forward`, or `forward = Bar.forward` inside."""
DECORATORS = ClassFact[tuple[str, ...]](
    "decorators",
    lambda cls, file: tuple(
        name
        for method in methods_of(cls)
        if method.name in ("forward", "__call__")
        for node in method.decorator_list
        if (name := dotted(called(node)))
    ),
    nothing=(),
    signs=("@",),
)
"""The names of what decorates the forward of a class, with or without a call."""
