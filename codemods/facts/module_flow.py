"""Trace modules reached from `self`, and the results of calling them, through a method.

A result is followed through unpacking, subscripts, attributes, arithmetic and plain assignments, and into the lists,
tuples and dicts that are built of results. It is also followed through functions that only compute, but is then not
`plain`: it counts only if the name of an argument does not tell what that holds. No other call is followed: what it
returns may be a mask or a size. What is stored at a computed index, as in `states[i] = ...`, is a layer's own state
and is not followed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ckpt_surgery.codemods.facts.evaluator import SAME_ITEMS
from ckpt_surgery.codemods.facts.file_facts import DYNAMIC, ELEMENT, AttributePath
from ckpt_surgery.codemods.facts.interpreter import Function, Interpreter
from ckpt_surgery.codemods.facts.syntax import dotted, drops_gradient

_ITEM_VIEWS = frozenset({"children", "values", "modules"})
_ADDING = frozenset({"append", "extend", "insert", "add"})
_CONTAINERS = frozenset({"list", "tuple", "dict", "set"})
_SAME_MODULES = SAME_ITEMS | {"enumerate", "islice"}
_COMPUTING = re.compile(
    r"(?:abs|add|bfloat16|bmm|cat|chunk|clamp|clone|contiguous|cumsum|div|double|dropout|einsum|exp|expand|flatten|flip"
    r"|float|gather|gelu|half|layer_norm|lerp|linear|log|log_softmax|masked_fill|matmul|mean|mul|normalize|pad|permute"
    r"|pow|relu|repeat|repeat_interleave|reshape|roll|rsqrt|select|sigmoid|silu|softmax|softplus|split|sqrt|squeeze"
    r"|stack|sub|sum|tanh|to|transpose|type_as|unbind|unflatten|unsqueeze|view|where)$"
)
"""Functions of torch and methods of tensors whose results have the gradient of their arguments."""
_NO_TENSORS = frozenset({"shape", "dtype", "device", "ndim"})


class Result(NamedTuple):
    """What the module at a path returned, or the parameter there; `plain` is explained at the top of this file."""

    path: AttributePath
    plain: bool


Results: TypeAlias = frozenset[Result]
_NO_RESULTS: Results = frozenset()


class Value(NamedTuple):
    """The modules (by their paths from `self`) and results that a value may be, and those that it holds inside."""

    paths: frozenset[AttributePath] = frozenset()
    elements: frozenset[AttributePath] = frozenset()
    results: Results = _NO_RESULTS
    inside: Results = _NO_RESULTS

    def __or__(self, other: Value) -> Value:
        if self is NOTHING or other is NOTHING:  # most values are, and are compared by identity
            return other if self is NOTHING else self
        return Value(
            self.paths | other.paths,
            self.elements | other.elements,
            self.results | other.results,
            self.inside | other.inside,
        )

    @property
    def all(self) -> Results:
        """The results that it is or holds inside."""
        return self.results | self.inside

    def itself(self) -> Results:
        """Return its paths as results: of a parameter, or of the module that is called."""
        return frozenset(Result(path, plain=False) for path in self.paths if path)

    def without_results(self) -> Value:
        """Return the modules alone."""
        return Value(self.paths, self.elements)


NOTHING = Value()
SELF = Value(frozenset({()}))


class ModuleFlow(Interpreter[Value]):
    """Follows modules and results through one method.

    `env` may hold the values of methods of the class, by `self.method()`.
    """

    nothing = NOTHING
    passes = 2

    def __init__(self, env: dict[str, Value]) -> None:
        super().__init__({"self": SELF, **env})
        self.no_gradient = False
        """Whether the statement is under `no_grad` or the like."""

    def join(self, values: Sequence[Value]) -> Value:
        total = NOTHING
        for value in values:
            total |= value
        return total

    def compute(self, values: Sequence[Value]) -> Value:
        """Return the results in an arithmetic expression, parameters included."""
        total = self.join(values)
        if total is NOTHING:
            return NOTHING
        results = total.results if self.no_gradient else total.results | total.itself()
        return Value(results=results, inside=total.inside)

    def contain(self, values: Sequence[Value]) -> Value:
        total = self.join(values)
        if total is NOTHING:
            return NOTHING
        return Value(elements=total.paths, inside=total.all if self.no_gradient else total.all | total.itself())

    def collect(self, item: Value) -> Value:
        """Return nothing: a comprehension may make masks, sizes or shapes."""
        return NOTHING

    def item(self, container: Value) -> Value:
        if container is NOTHING:
            return NOTHING
        below = frozenset((*path, ELEMENT) for path in container.paths)
        return Value(below | container.elements, results=container.all)

    def part(self, value: Value, position: int) -> Value:
        return value if value is NOTHING else Value(results=value.all)

    def rest(self, value: Value) -> Value:
        return Value(inside=value.all)

    def attribute(self, node: ast.Attribute, base: Value) -> Value:
        """Return a part of a module or of a result; for `self`, the results that the method has stored there too."""
        if base is NOTHING:
            return NOTHING
        paths = frozenset((*path, node.attr) for path in base.paths)
        if () in base.paths and (held := self.env.get(f"self.{node.attr}")):
            return Value(paths, results=held.results, inside=held.inside)
        return Value(paths) if node.attr in _NO_TENSORS else Value(paths, results=base.results, inside=base.inside)

    def subscript(self, node: ast.Subscript) -> Value:
        """Return an item; for a slice, the value itself."""
        self.value(node.slice)
        value = self.value(node.value)
        return value if isinstance(node.slice, ast.Slice) else self.item(value)

    def store(self, target: ast.Attribute | ast.Subscript, value: Value) -> None:
        """Remember the results stored in an attribute of `self`, or at a constant index."""
        match target:
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                self.env[f"self.{name}"] = Value(results=value.results, inside=value.inside)
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant()):
                self._add(name, value.all)

    def inside(self, node: ast.With | ast.AsyncWith) -> bool:
        """Follow the body of a `with` statement, perhaps without gradient."""
        before = self.no_gradient
        self.no_gradient = before or any(drops_gradient(item.context_expr) for item in node.items)
        ended = self.follow(node.body)
        self.no_gradient = before
        return ended

    def function(self, node: ast.Lambda) -> Value:
        """Follow a lambda, with the defaults of its parameters."""
        before = self.env
        self.env = before | self.defaults(node.args)
        self.value(node.body)
        self.env = before
        return NOTHING

    def defaults(self, arguments: ast.arguments) -> dict[str, Value]:
        """Return the values of a local function's parameters, by their defaults."""
        parameters = [*arguments.posonlyargs, *arguments.args]
        values = dict.fromkeys((node.arg for node in (*parameters, *arguments.kwonlyargs)), NOTHING)
        pairs = [*zip(reversed(parameters), reversed(arguments.defaults), strict=False)]
        pairs += [
            (node, value) for node, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value
        ]
        return values | {node.arg: self.value(value) for node, value in pairs}

    def call(self, node: ast.Call) -> Value:
        base = self.value(node.func.value) if isinstance(node.func, ast.Attribute) else NOTHING
        callee = self.attribute(node.func, base) if isinstance(node.func, ast.Attribute) else self.value(node.func)
        values = [self.value(argument) for argument in node.args]
        values += [self.value(keyword.value) for keyword in node.keywords]
        return self.called(node, base, callee, values)

    def called(self, node: ast.Call, base: Value, callee: Value, values: Sequence[Value]) -> Value:
        """Return the value of a call with these argument values; `base` is the value whose method is called."""
        if base is callee is NOTHING and all(value is NOTHING for value in values):
            return NOTHING
        given = values[0] if node.args else NOTHING
        match node.func:
            case ast.Name(id="getattr") if len(node.args) > 1:
                name = node.args[1]
                attribute = str(name.value) if isinstance(name, ast.Constant) else DYNAMIC
                return Value(frozenset((*path, attribute) for path in given.paths))
            case ast.Name(id=name) if values and (name in _SAME_MODULES or name in _CONTAINERS):
                modules = given.without_results() if name in _SAME_MODULES else NOTHING
                return modules | Value(inside=self.join(values).all if name in _CONTAINERS else _NO_RESULTS)
            case ast.Attribute(value=ast.Name(id=name), attr=method) if method in _ADDING and values:
                self._add(name, values[-1].all)
            case ast.Attribute(value=ast.Name(id=name), attr="pop"):
                return Value(results=self.env.get(name, NOTHING).inside)
            case ast.Attribute(attr=name) if name in _ITEM_VIEWS and not node.args:
                return base.without_results()
            case ast.Attribute(attr=name) if () in base.paths and (returned := self.env.get(f"self.{name}()")):
                return returned
            case ast.Attribute(attr=name) if not self.no_gradient and _COMPUTING.match(name):
                given = self.join([base, *values])
                results = frozenset(Result(path, plain=False) for path, _ in given.all)
                return Value(results=results | given.itself())
        return NOTHING if self.no_gradient else Value(results=callee.itself())

    def _add(self, name: str, results: Results) -> None:
        if results:
            self.env[name] = self.env.get(name, NOTHING) | Value(inside=results)


def accessors(functions: Iterable[ast.FunctionDef]) -> dict[str, Value]:
    """Return the values of methods that only return a module: `def _layer(self, i): return self.layers[i]`."""
    by_method: dict[str, Value] = {}
    for function in functions:
        body = function.body
        match body[1:] if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) else body:
            case [ast.Return(value=ast.expr() as value)]:
                returned = ModuleFlow({}).value(value).without_results()
                if returned.paths and () not in returned.paths:
                    by_method[f"self.{function.name}()"] = returned
    return by_method


class _CallCounter(ModuleFlow):
    """Counts the calls of modules in a local function; one in a loop counts twice."""

    passes = 1

    def __init__(self, env: dict[str, Value], functions: Collection[str]) -> None:
        super().__init__(env)
        self.calls = 0
        self.callees: set[str] = set()
        """The names that are called."""
        self._functions = functions
        self._calls_in_body: dict[int, int] = {}

    def count(self, function: Function, given: Mapping[str, Value]) -> None:
        self.enter(function.body, self.env | self.defaults(function.args) | dict(given))

    def define(self, node: Function | ast.ClassDef) -> None:
        if isinstance(node, Function):
            self.count(node, {})

    def side(self, node: ast.If, truth: bool) -> bool:
        """Count the calls of the side that has more of them."""
        before = self.calls
        ended = super().side(node, truth)
        if truth:
            self._calls_in_body[id(node)], self.calls = self.calls - before, before
        else:
            self.calls = before + max(self._calls_in_body[id(node)], self.calls - before)
        return ended

    def called(self, node: ast.Call, base: Value, callee: Value, values: Sequence[Value]) -> Value:
        """Count the call of a module; that of a local function counts as several."""
        name = dotted(node.func)
        self.callees.add(name)
        if callee.paths:
            self.calls += 2 if self.loops else 1
        elif name in self._functions:
            self.calls += 2
        return super().called(node, base, callee, values)


def calls_several(
    function: Function, env: Mapping[str, Value], functions: Collection[str], given: Mapping[str, Value] = {}
) -> bool:
    """Tell whether a local function calls anything but one module once: several, one in a loop, none.

    A function that calls only what the checkpoint call passes to it does not count, as in Idefics of 4.52.

    Args:
        function: the local function.
        env: the values of the names around it.
        functions: the names of local functions; one that it calls counts as several modules.
        given: the values of its parameters.
    """
    counter = _CallCounter(dict(env), functions)
    counter.count(function, given)
    passed_in = {node.arg for node in function.args.args} - {name for name, value in given.items() if value.paths}
    return counter.calls > 1 or (not counter.calls and not counter.callees & passed_in)
