"""Helpers for Python syntax that all readers share: spans, dotted names, imports, arguments of calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

ArgumentShape: TypeAlias = Literal["none", "constant", "container", "other"]
"""The kind of expression that an argument is: the constant None, another one, a list, tuple or dict, anything else."""


class Span(NamedTuple):
    """A range of a file as `ast` counts it: lines from 1, columns in UTF-8 bytes from 0, end exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int


class Argument(NamedTuple):
    """One argument of a call. `name` is None for a positional one, `*` or `**` for an unpacked one."""

    name: str | None
    text: str
    shape: ArgumentShape
    span: Span

    @property
    def is_value(self) -> bool:
        """Whether it may hold a tensor or a cache, which a constant such as None does not."""
        return self.shape not in ("none", "constant")


NO_GRADIENT = frozenset({"inference_mode", "no_grad"})
"""Torch's contexts and decorators under which nothing has a gradient."""
IN_PLACE = frozenset({"to", "cuda", "cpu", "half", "bfloat16", "float", "train", "eval", "requires_grad_"})
"""Methods that return the module they are called on."""
_CONTAINERS = (ast.List, ast.ListComp, ast.Tuple, ast.Dict, ast.DictComp)
UNPACKED = Argument("*", "", "other", Span(0, 0, 0, 0))
"""Stands for arguments that are not known."""


def span_of(node: ast.expr | ast.stmt | ast.keyword) -> Span:
    """Return the span of a node."""
    return Span(node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0)


def walk(node: ast.AST) -> list[ast.AST]:
    """Return every node inside a node, itself first, in the order of `ast.walk` but three times as fast.

    The `ctx` of names is left out.
    """
    nodes = [node]
    for inner in nodes:  # grows while it is read
        if inner.__class__ is ast.Name or inner.__class__ is ast.Constant:
            continue
        for name in inner._fields:
            value = getattr(inner, name, None)
            if value.__class__ is list:
                nodes += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST):
                nodes.append(value)
    return nodes


def statements_below(node: ast.AST) -> Iterator[ast.AST]:
    """Yield every statement inside a node, `except` and `case` clauses included, without entering expressions."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.stmt | ast.excepthandler | ast.match_case):
            yield inner
            yield from statements_below(inner)


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` for names and attributes; empty for anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    names.append(node.id)
    return ".".join(reversed(names))


def last_name(node: ast.expr) -> str:
    """Return the last part of a dotted name, `checkpoint` of `utils.checkpoint`; empty for anything else."""
    return dotted(node).rpartition(".")[2]


def values_of(call: ast.Call) -> list[ast.expr]:
    """Return the values that a call passes, by position and then by keyword."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def passes_false(call: ast.Call) -> bool:
    """Tell whether one of a call's arguments is the constant False: `model.train(False)`."""
    return any(isinstance(value, ast.Constant) and value.value is False for value in values_of(call))


def imported_names(statement: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Yield each name that an import statement binds, with the module and the name in that module.

    The module keeps its leading dots. The name in it is empty if the module itself is imported.
    """
    match statement:
        case ast.ImportFrom(module=module, names=names, level=level):
            for alias in names:
                yield alias.asname or alias.name, "." * level + (module or ""), alias.name
        case ast.Import(names=names):
            for alias in names:
                yield alias.asname or alias.name.partition(".")[0], alias.name, ""


def called(node: ast.expr) -> ast.expr:
    """Return the callee of a call, such as a decorator with arguments, and any other node as it is."""
    return node.func if isinstance(node, ast.Call) else node


def drops_gradient(node: ast.expr) -> bool:
    """Tell whether a decorator or context switches gradients off, as also `backend().no_grad()` does."""
    function = called(node)
    return (function.attr if isinstance(function, ast.Attribute) else last_name(function)) in NO_GRADIENT


def assigned_names(statement: ast.stmt) -> tuple[str, ...]:
    """Return the names that a statement assigns, except those inside tuples."""
    match statement:
        case ast.Assign(targets=targets):
            return tuple(target.id for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            return (name,)
    return ()


def first_line_of(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the line of the first decorator, or of the definition if it has none."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def arguments_of(call: ast.Call, skip: int = 0) -> tuple[Argument, ...]:
    """Return the arguments of a call in source order, without the first `skip` positional ones."""
    given: list[tuple[str | None, ast.expr, ast.expr | ast.keyword]]
    given = [("*" if isinstance(node, ast.Starred) else None, node, node) for node in call.args[skip:]]
    given += [(keyword.arg or "**", keyword.value, keyword) for keyword in call.keywords]
    arguments: list[Argument] = []
    for name, value, place in given:
        shape: ArgumentShape = "container" if isinstance(value, _CONTAINERS) else "other"
        if isinstance(value, ast.Constant):
            shape = "none" if value.value is None else "constant"
        arguments.append(Argument(name, ast.unparse(value), shape, span_of(place)))
    return tuple(arguments)
