"""What names stand for inside one method: modules reached from `self` by a path."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ckpt_surgery.codemods.facts.file_facts import DYNAMIC, ELEMENT, AttributePath
from ckpt_surgery.codemods.facts.syntax import dotted, walk

_SAME_ELEMENTS = {"reversed", "list", "tuple", "sorted", "iter", "tqdm", "enumerate", "islice"}
_VIEWS = {"children", "values", "modules"}
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True, slots=True)
class ReachedModules:
    """Modules reached by a path, or what a literal container of such holds."""

    paths: frozenset[AttributePath] = frozenset()
    elements: frozenset[AttributePath] = frozenset()

    def __or__(self, other: ReachedModules) -> ReachedModules:
        return ReachedModules(self.paths | other.paths, self.elements | other.elements)

    def attribute(self, name: str) -> ReachedModules:
        """`value.name`."""
        return ReachedModules(frozenset((*path, name) for path in self.paths))

    def element(self) -> ReachedModules:
        """`value[i]`, or what a loop over it yields."""
        return ReachedModules(frozenset((*path, ELEMENT) for path in self.paths) | self.elements)


NO_MODULES = ReachedModules()
SELF = ReachedModules(frozenset({()}))
Env: TypeAlias = dict[str, ReachedModules]
"""What names stand for, and what methods return: these are under `self.method()`."""


def union(values: Iterable[ReachedModules]) -> ReachedModules:
    """Any of the values."""
    total = NO_MODULES
    for value in values:
        total |= value
    return total


def value_of(node: ast.expr, env: Env) -> ReachedModules:
    """What an expression stands for; NO_MODULES where it is no module reached from `self`."""
    match node:
        case ast.Name(id=name):
            return env.get(name, NO_MODULES)
        case ast.Attribute(value=value, attr=name):
            return value_of(value, env).attribute(name)
        case ast.Subscript(value=value, slice=ast.Slice()):
            return value_of(value, env)
        case ast.Subscript(value=value):
            return value_of(value, env).element()
        case ast.IfExp(body=body, orelse=orelse):
            return value_of(body, env) | value_of(orelse, env)
        case ast.BoolOp(values=values):
            return union(value_of(value, env) for value in values)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return ReachedModules(elements=union(value_of(item, env) for item in items).paths)
        case ast.Call(func=ast.Name(id="getattr"), args=[base, name, *_]):
            attribute = name.value if isinstance(name, ast.Constant) else DYNAMIC
            return value_of(base, env).attribute(str(attribute))
        case ast.Call(func=ast.Name(id=name), args=[inner, *_]) if name in _SAME_ELEMENTS:
            return value_of(inner, env)
        case ast.Call(func=ast.Attribute(value=inner, attr=name), args=[]) if name in _VIEWS:
            return value_of(inner, env)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
            return env.get(f"self.{name}()", NO_MODULES)
    return NO_MODULES


def accessors(functions: Iterable[ast.FunctionDef]) -> Env:
    """What the methods return that do nothing else: `def _layer(self, i): return self.layers[i]`."""
    found: Env = {}
    for function in functions:
        match [statement for statement in function.body if not _is_docstring(statement)]:
            case [ast.Return(value=ast.expr() as value)]:
                returned = value_of(value, {"self": SELF})
                if returned.paths and () not in returned.paths:
                    found[f"self.{function.name}()"] = returned
    return found


def calls_several(
    function: ast.FunctionDef, env: Env, functions: Mapping[str, ast.FunctionDef], given: Env | None = None
) -> bool:
    """Whether a local function calls other than one module once: several, one in a loop, or none that is understood.

    Local `functions` that it calls count with what they call. `given` are the values of its parameters. Modules that
    it is handed with the checkpoint call are not counted, as in Idefics of transformers 4.52.
    """
    nodes = _with_called(function, functions)
    inner = dict(env)
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            names = [parameter.arg for parameter in (*node.args.posonlyargs, *node.args.args)]
            inner.update(dict.fromkeys(names, NO_MODULES))
            defaults = [*zip(reversed(names), reversed(node.args.defaults), strict=False)]
            defaults += [(parameter.arg, value) for parameter, value in _keyword_defaults(node)]
            inner.update((name, value_of(default, env)) for name, default in defaults)
    inner.update(given or {})
    repeated = [part for node in nodes for part in _repeated(node)]
    for node in nodes:
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            bind_loop(node.target, node.iter, inner)
        elif isinstance(node, ast.Assign):
            bind(node.targets[0], node.value, inner)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            bind(node.target, node.value, inner)
    calls = {id(node) for node in nodes if isinstance(node, ast.Call) and value_of(node.func, inner).paths}
    calls -= {id(node) for branch in nodes for node in _alternatives(branch, calls)}
    handed = {node.arg for node in function.args.args if not inner[node.arg].paths}
    if not calls and any(isinstance(node, ast.Call) and dotted(node.func) in handed for node in nodes):
        return False
    return len(calls) != 1 or any(id(node) in calls for part in repeated for node in _with_called(part, functions))


def _alternatives(branch: ast.AST, calls: Collection[int]) -> Iterator[ast.AST]:
    """What runs in place of some of the calls: the other side of a test."""
    if isinstance(branch, ast.If) and any(id(node) in calls for part in branch.body for node in walk(part)):
        for statement in branch.orelse:
            yield from walk(statement)


def _repeated(node: ast.AST) -> list[ast.AST]:
    """What of a node may run more than once: a loop, and a lambda that a call is given, as `reduce` is."""
    if isinstance(node, ast.Call):
        return [argument for argument in node.args if isinstance(argument, ast.Lambda)]
    return [node] if isinstance(node, _LOOPS) else []


def _keyword_defaults(function: ast.FunctionDef) -> Iterator[tuple[ast.arg, ast.expr]]:
    """The parameters that are passed by keyword alone and have a default, with it."""
    pairs = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return ((parameter, default) for parameter, default in pairs if default is not None)


def _with_called(part: ast.AST, functions: Mapping[str, ast.FunctionDef]) -> list[ast.AST]:
    """Every node of some code, and of the local functions that it calls, each once."""
    nodes = list(walk(part))
    seen = {id(part)}
    for node in nodes:  # grows while it is read
        if isinstance(node, ast.Name) and node.id in functions and id(functions[node.id]) not in seen:
            seen.add(id(functions[node.id]))
            nodes += walk(functions[node.id])
    return nodes


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def bind(target: ast.expr, value: ast.expr, env: Env) -> None:
    """`target = value`."""
    match target:
        case ast.Name(id=name):
            env[name] = value_of(value, env)
        case ast.Tuple(elts=targets) if isinstance(value, ast.Tuple) and len(value.elts) == len(targets):
            for inner_target, inner_value in zip(targets, value.elts, strict=True):
                bind(inner_target, inner_value, env)
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            for inner_target in targets:
                if isinstance(inner_target, ast.Name):
                    env.pop(inner_target.id, None)


def bind_loop(target: ast.expr, iterable: ast.expr, env: Env) -> None:
    """`for target in iterable`, also over enumerate, zip and items."""
    match iterable:
        case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]):
            if isinstance(target, ast.Tuple) and len(target.elts) == 2:
                bind_loop(target.elts[1], inner, env)
            return
        case ast.Call(func=ast.Name(id="zip"), args=inners) if isinstance(target, ast.Tuple):
            for inner_target, inner in zip(target.elts, inners, strict=False):
                bind_loop(inner_target, inner, env)
            return
        case ast.Call(func=ast.Attribute(value=mapping, attr="items" | "named_children")):
            if isinstance(target, ast.Tuple) and isinstance(target.elts[-1], ast.Name):
                env[target.elts[-1].id] = value_of(mapping, env).element()
            return
    if isinstance(target, ast.Name):
        env[target.id] = value_of(iterable, env).element()
