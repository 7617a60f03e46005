"""Which arguments of a method's calls hold results of its block calls, or of other modules and parameters of its
class, followed by data flow and not by name.

What is stored at an index that is computed, as in `states[i] = ...`, is a layer's own state and is not followed.
A result stays one through unpacking, subscripts, attributes, arithmetic and plain assignments, and inside the lists,
tuples and dicts that are built of results, and through functions that only compute. Any other call ends it: what it
returns may be a mask or a size. A loop is followed twice, so what one pass assigns reaches the calls of the next.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from ckpt_surgery.codemods.facts.argument_names import is_past_state, may_carry_gradient
from ckpt_surgery.codemods.facts.file_facts import ELEMENT, AttributePath, CarriedArgument
from ckpt_surgery.codemods.facts.syntax import Argument, Span, dotted, span_of

_ADDING = {"append", "extend", "insert", "add"}
_CONTAINERS = {"list", "tuple", "dict", "set"}
_COMPUTING = re.compile(
    r"(?:abs|add|bfloat16|bmm|cat|chunk|clamp|clone|contiguous|cumsum|div|double|dropout|einsum|exp|expand|flatten|flip"
    r"|float|gather|gelu|half|layer_norm|lerp|linear|log|log_softmax|masked_fill|matmul|mean|mul|normalize|pad|permute"
    r"|pow|relu|repeat|repeat_interleave|reshape|roll|rsqrt|select|sigmoid|silu|softmax|softplus|split|sqrt|squeeze"
    r"|stack|sub|sum|tanh|to|transpose|type_as|unbind|unflatten|unsqueeze|view|where)$"
)
"""Functions of torch, and methods of tensors, whose result has the gradient of what they are given."""
_NO_GRADIENT = {"no_grad", "inference_mode"}
_NO_TENSORS = {"shape", "dtype", "device", "ndim"}

AttributePaths: TypeAlias = frozenset[AttributePath]


class Held(NamedTuple):
    """The calls whose results a value is, and those whose results it holds, as a list or dict does: their paths."""

    result: AttributePaths = frozenset()
    inside: AttributePaths = frozenset()

    def __or__(self, other: Held) -> Held:
        return Held(self.result | other.result, self.inside | other.inside)

    @property
    def all(self) -> AttributePaths:
        """Both."""
        return self.result | self.inside


HOLDS_NOTHING = Held()
_Env: TypeAlias = dict[str, Held]


class ResultFlow:
    """Follows the results of some calls, given by their places, through one function.

    `held` tells for each of these calls what its arguments hold, by position in source order, keywords last, and
    `names` what all names hold there.
    """

    def __init__(self, calls: Mapping[Span, AttributePaths], *, sources: bool = False) -> None:
        self._calls = calls
        self._sources = sources
        """Whether other modules and parameters of the class are followed, too: from the first statement on."""
        self.held: dict[Span, list[Held]] = {}
        self.names: dict[Span, dict[str, Held]] = {}

    def read(self, function: ast.FunctionDef) -> None:
        """Follow the function from the first of the calls to the last: before it there is no result yet."""
        last = max(place.line for place in self._calls)
        first = 0 if self._sources else min(place.line for place in self._calls)
        body = (inner for inner in function.body if inner.lineno <= last and (inner.end_lineno or first) >= first)
        self._block(body, {})

    def carried(self, call: Span) -> tuple[CarriedArgument, ...]:
        """The arguments of a call that hold results."""
        return tuple(
            CarriedArgument(position, tuple(sorted(held.all)), in_container=bool(held.inside))
            for position, held in enumerate(self.held.get(call, ()))
            if held.all
        )

    # -- statements

    def _block(self, statements: Iterable[ast.stmt], env: _Env) -> None:
        for statement in statements:
            self._statement(statement, env)

    def _statement(self, statement: ast.stmt, env: _Env) -> None:
        match statement:
            case ast.Assign(targets=targets, value=value):
                self._assignment(targets, value, env)
            case ast.For(target=target, iter=iterable, body=body, orelse=orelse):
                self._value(iterable, env)
                for _ in range(2):
                    self._bind_items(target, iterable, env)
                    self._branch(body, env)
                self._block(orelse, env)
            case ast.While(test=test, body=body, orelse=orelse):
                for _ in range(2):
                    self._value(test, env)
                    self._branch(body, env)
                self._block(orelse, env)
            case ast.If(test=test, body=body, orelse=orelse):
                self._value(test, env)
                other = dict(env)
                self._block(body, env)
                self._block(orelse, other)
                _join(env, other)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                self._block([*body, *orelse], env)
                for handler in handlers:
                    self._branch(handler.body, env)
                self._block(final, env)
            case ast.With(items=items, body=body):
                for item in items:
                    self._value(item.context_expr, env)
                sources = self._sources
                self._sources = sources and not any(_is_off(item.context_expr) for item in items)
                self._block(body, env)
                self._sources = sources
            case ast.Match(subject=subject, cases=cases):
                self._value(subject, env)
                for case in cases:
                    self._branch(case.body, env)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assignment([target], value, env)
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                env[name] = env.get(name, HOLDS_NOTHING) | self._value(value, env)
            case ast.FunctionDef(args=arguments, body=body) if self._sources:
                inner = dict(env)
                for parameter in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                    inner.pop(parameter.arg, None)
                self._block(body, inner)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return
            case _:
                for node in ast.iter_child_nodes(statement):
                    if isinstance(node, ast.expr):
                        self._value(node, env)

    def _branch(self, statements: Iterable[ast.stmt], env: _Env) -> None:
        """Statements that may run or not."""
        other = dict(env)
        self._block(statements, other)
        _join(env, other)

    def _bind_items(self, target: ast.expr, iterable: ast.expr, env: _Env) -> None:
        """`for target in iterable`, also over several at once."""
        match iterable, target:
            case ast.Call(func=ast.Name(id="zip"), args=inners), ast.Tuple(elts=targets):
                for inner, item in zip(inners, targets, strict=False):
                    self._bind_items(item, inner, env)
            case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]), ast.Tuple(elts=[_, item]):
                self._bind_items(item, inner, env)
            case ast.Call(func=ast.Name(id="reversed" | "iter" | "tqdm"), args=[inner, *_]), _:
                self._bind_items(target, inner, env)
            case _:
                _assign(target, Held(self._value(iterable, env).all), env)

    def _assignment(self, targets: Iterable[ast.expr], value: ast.expr, env: _Env) -> None:
        for target in targets:
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
                values = [self._value(item, env) for item in value.elts]
                for inner, held in zip(target.elts, values, strict=True):
                    _assign(inner, held, env)
            else:
                _assign(target, self._value(value, env), env)

    # -- expressions

    def _value(self, node: ast.expr, env: _Env) -> Held:
        """What an expression holds; the calls inside it are recorded."""
        if node.__class__ is ast.Constant:  # most expressions are constants, names and calls
            return HOLDS_NOTHING
        match node:
            case ast.Name(id=name):
                return env.get(name, HOLDS_NOTHING)
            case ast.Call():
                return self._call(node, env)
            case ast.Subscript(value=value, slice=index):
                self._value(index, env)
                held = self._value(value, env)
                return held if isinstance(index, ast.Slice) else Held(held.all)
            case ast.Attribute(value=value, attr=name):
                if self._sources and (path := _path_from_self(node)):
                    return env.get(".".join(("self", *path)), Held(frozenset({path})))
                held = self._value(value, env)
                return HOLDS_NOTHING if name in _NO_TENSORS else held
            case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
                return Held(inside=self._union(items, env).all)
            case ast.Dict(keys=keys, values=values):
                self._union((key for key in keys if key), env)
                return Held(inside=self._union(values, env).all)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self._value(test, env)
                return self._value(body, env) | self._value(orelse, env)
            case ast.BoolOp(values=values):
                return self._union(values, env)
            case ast.BinOp(left=left, right=right):
                return self._value(left, env) | self._value(right, env)
            case ast.UnaryOp(op=ast.USub(), operand=value) | ast.Starred(value=value) | ast.Await(value=value):
                return self._value(value, env)
            case ast.NamedExpr(target=target, value=value):
                _assign(target, held := self._value(value, env), env)
                return held
            case ast.Lambda():
                return HOLDS_NOTHING
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.expr):
                self._value(inner, env)
        return HOLDS_NOTHING

    def _union(self, nodes: Iterable[ast.expr], env: _Env) -> Held:
        total = HOLDS_NOTHING
        for node in nodes:
            total |= self._value(node, env)
        return total

    def _call(self, call: ast.Call, env: _Env) -> Held:
        self._value(call.func, env)
        given = [self._value(node, env) for node in (*call.args, *(keyword.value for keyword in call.keywords))]
        place = span_of(call)
        paths = self._calls.get(place)
        if paths is not None:
            before = self.held.get(place, [HOLDS_NOTHING] * len(given))
            self.held[place] = [old | new for old, new in zip(before, given, strict=True)]
            _join(self.names.setdefault(place, {}), env)
            return Held(paths)
        match call.func:
            case ast.Name(id=name) if name in _CONTAINERS and given:
                return Held(inside=frozenset().union(*(held.all for held in given)))
            case ast.Attribute(value=ast.Name(id=name), attr=method) if method in _ADDING and given:
                env[name] = env.get(name, HOLDS_NOTHING) | Held(inside=given[-1].all)
            case ast.Attribute(value=ast.Name(id=name), attr="pop"):
                return Held(env.get(name, HOLDS_NOTHING).inside)
            case ast.Attribute(value=value, attr=name) if self._sources and _COMPUTING.match(name):
                return Held(frozenset().union(self._value(value, env).all, *(held.all for held in given)))
        path = _path_from_self(call.func) if self._sources else ()
        return Held(frozenset({path})) if path else HOLDS_NOTHING


def has_unknown_keyword(arguments: Iterable[Argument]) -> bool:
    """Whether a keyword argument may carry gradient, for all that its name tells: one that is unpacked, too."""
    for argument in arguments:
        name = argument.name or "*"
        unpacked = name == "**" and not argument.text.endswith("kwargs")
        tensor = name[0] != "*" and argument.shape in ("name", "other")
        if unpacked or (tensor and may_carry_gradient(name) and not is_past_state(name)):
            return True
    return False


def _is_off(context: ast.expr) -> bool:
    return dotted(context.func if isinstance(context, ast.Call) else context).rpartition(".")[2] in _NO_GRADIENT


def _path_from_self(node: ast.expr) -> AttributePath:
    """The path of `self.a.b` or `self.a[0]`; empty for anything else."""
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return (name,)
        case ast.Attribute(value=value, attr=name) if path := _path_from_self(value):
            return (*path, name)
        case ast.Subscript(value=value) if path := _path_from_self(value):
            return (*path, ELEMENT)
    return ()


def _assign(target: ast.expr, held: Held, env: _Env) -> None:
    match target:
        case ast.Name(id=name):
            env[name] = held
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            env[f"self.{name}"] = held
        case ast.Starred(value=value):
            _assign(value, Held(inside=held.all), env)
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            for inner in targets:
                _assign(inner, Held(held.all), env)
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant()) if held.all:
            env[name] = env.get(name, HOLDS_NOTHING) | Held(inside=held.all)


def _join(env: _Env, other: Mapping[str, Held]) -> None:
    for name in other:
        env[name] = env.get(name, HOLDS_NOTHING) | other[name]
