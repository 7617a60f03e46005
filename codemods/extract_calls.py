"""Where a method calls what it reached from `self`: loops over stacks, elements by index, closures,
and inline checkpoint branches.

Values are followed top to bottom through one method; an `if` joins what its branches bound.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from codemods.extract_build import dotted, span_of
from codemods.facts import DYNAMIC, ELEMENT, Arg, Call, CheckpointCall, InlineBranch, Path, Span
from model_patches.vocabulary import is_past_state

_CHECKPOINT_ATTRIBUTES = {"_gradient_checkpointing_func", "gradient_checkpointing_func"}
_SAME_ELEMENTS = {"reversed", "list", "tuple", "sorted", "iter", "tqdm", "enumerate", "islice"}
_VIEWS = {"children", "values", "modules"}
_STATEMENT_FIELDS = ("body", "orelse", "finalbody", "handlers", "cases")


@dataclass(frozen=True, slots=True)
class Value:
    """What a name may stand for: modules reached by a path, or literal containers of such."""

    paths: frozenset[Path] = frozenset()
    elements: frozenset[Path] = frozenset()

    def __or__(self, other: Value) -> Value:
        return Value(self.paths | other.paths, self.elements | other.elements)

    def attribute(self, name: str) -> Value:
        return Value(frozenset((*path, name) for path in self.paths))

    def element(self) -> Value:
        return Value(frozenset((*path, ELEMENT) for path in self.paths) | self.elements)


_NOTHING = Value()
_SELF = Value(frozenset({()}))
_Env = dict[str, Value]


def _shape(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=None):
            return "none"
        case ast.Constant():
            return "constant"
        case ast.Name():
            return "name"
        case ast.List() | ast.ListComp():
            return "list"
        case ast.Tuple():
            return "tuple"
        case ast.Dict() | ast.DictComp():
            return "dict"
    return "other"


def arguments_of(call: ast.Call, skip: int = 0) -> tuple[Arg, ...]:
    """The arguments of a call in source order, the first `skip` positional ones left out."""
    found: list[Arg] = []
    for node in call.args[skip:]:
        name = "*" if isinstance(node, ast.Starred) else None
        found.append(Arg(name, ast.unparse(node), _shape(node), span_of(node)))
    for keyword in call.keywords:
        value = keyword.value
        found.append(Arg(keyword.arg or "**", ast.unparse(value), _shape(value), span_of(keyword)))  # type: ignore[arg-type]
    return tuple(found)


def _mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(inner, ast.Name) and inner.id == name for inner in ast.walk(node))


@dataclass(slots=True)
class MethodReader:
    """Reads one method: fills `calls` and `inlines`."""

    method: str
    direct: frozenset[str]
    """Attributes whose own call (`self.layer(...)`) is wanted, besides elements of containers."""
    checkpoint_names: frozenset[str]
    """Names that this file imports a checkpoint function as."""
    calls: list[Call] = field(default_factory=list)
    inlines: list[InlineBranch] = field(default_factory=list)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    _taken: set[int] = field(default_factory=set)

    def read(self, function: ast.FunctionDef) -> None:
        """Read the whole method."""
        self._block(function.body, {"self": _SELF})
        if self.inlines:
            self._guards(function)

    # -- statements

    def _block(self, statements: Iterable[ast.stmt], env: _Env) -> None:
        for statement in statements:
            self._statement(statement, env)

    def _statement(self, statement: ast.stmt, env: _Env) -> None:
        match statement:
            case ast.For(target=target, iter=iterable) | ast.AsyncFor(target=target, iter=iterable):
                self._expressions(iterable, statement, env)
                self._bind_loop(target, iterable, env)
                self._block(statement.body, env)
                self._block(statement.orelse, env)
            case ast.If():
                self._if(statement, env)
            case ast.FunctionDef():
                self.functions[statement.name] = statement
            case ast.Assign(targets=targets, value=value):
                self._expressions(value, statement, env)
                for target in targets:
                    self._bind(target, value, env)
            case ast.ClassDef():
                return
            case _:
                self._other(statement, env)

    def _other(self, statement: ast.stmt, env: _Env) -> None:
        for name, value in ast.iter_fields(statement):
            if name in _STATEMENT_FIELDS:
                for inner in value:
                    if isinstance(inner, ast.stmt):
                        self._statement(inner, env)
                    else:
                        self._block(inner.body, env)
            elif isinstance(value, ast.expr):
                self._expressions(value, statement, env)
            elif name == "items":
                for item in value:
                    self._expressions(item.context_expr, statement, env)

    def _if(self, statement: ast.If, env: _Env) -> None:
        inline = self._inline_head(statement)
        self._expressions(statement.test, statement, env)
        before = dict(env)
        first = len(self.calls)
        self._block(statement.body, env)
        if inline:
            del self.calls[first:]
        other = before
        first = len(self.calls)
        self._block(statement.orelse, other)
        for name, value in other.items():
            env[name] = env.get(name, _NOTHING) | value
        if inline:
            self.inlines.append(self._inline(statement, inline, before | env, tuple(self.calls[first:])))

    def _bind(self, target: ast.expr, value: ast.expr, env: _Env) -> None:
        match target:
            case ast.Name(id=name):
                env[name] = self._value(value, env)
            case ast.Tuple(elts=targets) if isinstance(value, ast.Tuple) and len(value.elts) == len(targets):
                for one, its in zip(targets, value.elts, strict=True):
                    self._bind(one, its, env)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                for one in targets:
                    if isinstance(one, ast.Name):
                        env.pop(one.id, None)

    def _bind_loop(self, target: ast.expr, iterable: ast.expr, env: _Env) -> None:
        match iterable:
            case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]):
                if isinstance(target, ast.Tuple) and len(target.elts) == 2:
                    self._bind_loop(target.elts[1], inner, env)
                return
            case ast.Call(func=ast.Name(id="zip"), args=inners) if isinstance(target, ast.Tuple):
                for one, inner in zip(target.elts, inners, strict=False):
                    self._bind_loop(one, inner, env)
                return
            case ast.Call(func=ast.Attribute(value=mapping, attr="items" | "named_children")):
                if isinstance(target, ast.Tuple) and isinstance(target.elts[-1], ast.Name):
                    env[target.elts[-1].id] = self._value(mapping, env).element()
                return
        if isinstance(target, ast.Name):
            env[target.id] = self._value(iterable, env).element()

    # -- values

    def _value(self, node: ast.expr, env: _Env) -> Value:
        match node:
            case ast.Name(id=name):
                return env.get(name, _NOTHING)
            case ast.Attribute(value=value, attr=name):
                return self._value(value, env).attribute(name)
            case ast.Subscript(value=value, slice=ast.Slice()):
                return self._value(value, env)
            case ast.Subscript(value=value):
                return self._value(value, env).element()
            case ast.IfExp(body=one, orelse=other):
                return self._value(one, env) | self._value(other, env)
            case ast.BoolOp(values=values):
                return _union(self._value(value, env) for value in values)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return Value(elements=_union(self._value(item, env) for item in items).paths)
            case ast.Call(func=ast.Name(id="getattr"), args=[base, name, *_]):
                known = name.value if isinstance(name, ast.Constant) else DYNAMIC
                return self._value(base, env).attribute(str(known))
            case ast.Call(func=ast.Name(id=name), args=[inner, *_]) if name in _SAME_ELEMENTS:
                return self._value(inner, env)
            case ast.Call(func=ast.Attribute(value=inner, attr=name), args=[]) if name in _VIEWS:
                return self._value(inner, env)
        return _NOTHING

    def _callable(self, node: ast.expr, env: _Env) -> tuple[frozenset[Path], str]:
        """What a checkpoint function is given to run, and how it is wrapped."""
        match node:
            case ast.Attribute(value=value, attr="__call__" | "forward"):
                return self._value(value, env).paths, "plain"
            case ast.Call(func=function, args=[inner, *_]) if dotted(function).rpartition(".")[2] == "partial":
                return self._callable(inner, env)[0], "partial"
            case ast.Call(func=ast.Name(), args=[inner, *_]):
                return self._callable(inner, env)[0], "custom"
            case ast.Name(id=name) if name in self.functions:
                return frozenset(), "closure"
        return self._value(node, env).paths, "plain"

    # -- expressions

    def _expressions(self, node: ast.expr, statement: ast.stmt, env: _Env) -> None:
        """Record the calls inside an expression that reach an element of a container or a wanted attribute."""
        calls = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call | ast.comprehension)]
        if any(isinstance(inner, ast.comprehension) for inner in calls):
            env = dict(env)
            for inner in calls:
                if isinstance(inner, ast.comprehension):
                    self._bind_loop(inner.target, inner.iter, env)
        for call in calls:
            if not isinstance(call, ast.Call):
                continue
            if self._is_checkpoint(call.func):
                self._bare(call, statement, env)
                continue
            if isinstance(call.func, ast.Name) and call.func.id in self.functions:
                self._enter(call, self.functions[call.func.id], env)
                self._record(call, statement, frozenset({("<local>", call.func.id)}))
                continue
            if not isinstance(call.func, ast.Name | ast.Attribute | ast.Subscript):
                continue
            paths = self._value(_uncalled(call.func), env).paths
            wanted = frozenset(path for path in paths if self._wanted(path))
            if wanted:
                self._record(call, statement, wanted)

    def _wanted(self, path: Path) -> bool:
        return bool(path) and (path[-1] in (ELEMENT, DYNAMIC) or (len(path) == 1 and path[0] in self.direct))

    def _record(self, call: ast.Call, statement: ast.stmt, paths: frozenset[Path]) -> None:
        self.calls.append(
            Call(
                method=self.method,
                span=span_of(call),
                statement=span_of(statement),
                callee=ast.unparse(call.func),
                paths=tuple(sorted(paths)),
                args=arguments_of(call),
                target=_target(statement, call),
            )
        )

    def _enter(self, call: ast.Call, function: ast.FunctionDef, env: _Env) -> None:
        """Read a local function at its call, with its parameters bound to what it is given."""
        if id(function) in self._taken:
            return
        self._taken.add(id(function))
        inner = dict(env)
        names = [parameter.arg for parameter in function.args.args]
        given = dict(zip(names, call.args, strict=False))
        given.update({keyword.arg: keyword.value for keyword in call.keywords if keyword.arg})
        for name, node in given.items():
            inner[name] = self._value(node, env)
        self._block(function.body, inner)

    # -- inline branches

    def _is_checkpoint(self, function: ast.expr) -> bool:
        if isinstance(function, ast.Attribute) and function.attr in _CHECKPOINT_ATTRIBUTES:
            return True
        name = dotted(function)
        return name in self.checkpoint_names or name.endswith(("checkpoint.checkpoint", "checkpointing.checkpoint"))

    def _checkpoints(self, statements: Iterable[ast.stmt]) -> list[tuple[ast.stmt, ast.Call]]:
        found: list[tuple[ast.stmt, ast.Call]] = []
        for statement in statements:
            for inner in ast.walk(statement):
                if isinstance(inner, ast.Call) and self._is_checkpoint(inner.func):
                    found.append((_innermost(statement, inner), inner))
        return found

    def _inline_head(self, statement: ast.If) -> list[tuple[ast.stmt, ast.Call]]:
        """The checkpoint calls of an inline branch, when this `if` is one and none has taken them yet."""
        if "checkpoint" not in ast.unparse(statement.test):
            return []
        found = [pair for pair in self._checkpoints(statement.body) if id(pair[1]) not in self._taken]
        self._taken.update(id(call) for _, call in found)
        return found

    def _bare(self, call: ast.Call, statement: ast.stmt, env: _Env) -> None:
        if id(call) in self._taken:
            return
        self._taken.add(id(call))
        self.inlines.append(
            InlineBranch(
                method=self.method,
                span=span_of(statement),
                test="",
                conditions=(),
                is_elif=False,
                body=(),
                body_kinds=(),
                orelse=(),
                orelse_is_elif=False,
                checkpoints=(self._checkpoint(call, statement, env),),
                direct=(),
                guard="",
                guard_needed=False,
            )
        )

    def _checkpoint(self, call: ast.Call, statement: ast.stmt, env: _Env) -> CheckpointCall:
        paths, wrapped = self._callable(call.args[0], env) if call.args else (frozenset[Path](), "plain")
        return CheckpointCall(
            span=span_of(call),
            callee=ast.unparse(call.args[0]) if call.args else "",
            paths=tuple(sorted(path for path in paths if path)),
            args=arguments_of(call, skip=1),
            target=_target(statement, call),
            wrapped=wrapped,
        )

    def _inline(
        self, statement: ast.If, found: list[tuple[ast.stmt, ast.Call]], env: _Env, direct: tuple[Call, ...]
    ) -> InlineBranch:
        inner_env = dict(env)
        for inner in statement.body:
            for node in ast.walk(inner):
                if isinstance(node, ast.For):
                    self._bind_loop(node.target, node.iter, inner_env)
        guard = next((name for inner in statement.body if (name := _guard(inner))), "")
        other = statement.orelse
        return InlineBranch(
            method=self.method,
            span=span_of(statement),
            test=ast.unparse(statement.test),
            conditions=tuple(_conditions(statement.test)),
            is_elif=False,
            body=tuple(map(span_of, statement.body)),
            body_kinds=tuple(self._kind(inner, other) for inner in statement.body),
            orelse=tuple(map(span_of, other)),
            orelse_is_elif=False,
            checkpoints=tuple(self._checkpoint(call, inner, inner_env) for inner, call in found),
            direct=direct,
            guard=guard,
            guard_needed=False,
        )

    def _kind(self, statement: ast.stmt, other: list[ast.stmt]) -> str:
        if self._checkpoints([statement]):
            return "checkpoint"
        if _guard(statement):
            return "guard"
        match statement:
            case ast.FunctionDef():
                return "function"
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=None)) if is_past_state(name):
                return "past"
            case ast.Expr(value=ast.Call(func=function)) if "logger" in dotted(function) or "warn" in dotted(function):
                return "log"
        same = ast.dump(statement)
        return "mirrored" if any(ast.dump(one) == same for one in other) else "other"

    def _guards(self, function: ast.FunctionDef) -> None:
        """Fill in what only the whole method tells: `elif`s, and guards that later code relies on."""
        elifs: set[tuple[int, int]] = set()
        ifs: dict[tuple[int, int], ast.If] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.If):
                ifs[(node.lineno, node.col_offset)] = node
                if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
                    inner = node.orelse[0]
                    if inner.col_offset == node.col_offset:
                        elifs.add((inner.lineno, inner.col_offset))
        for position, inline in enumerate(self.inlines):
            place = (inline.span.line, inline.span.column)
            node = ifs.get(place)
            if not inline.test or node is None:
                continue
            other_is_elif = (
                bool(node.orelse) and (node.orelse[0].lineno, node.orelse[0].col_offset) in elifs
            )
            needed = bool(inline.guard) and _read_later(function, node, inline.guard)
            self.inlines[position] = InlineBranch(
                **{name: getattr(inline, name) for name in _INLINE_FIELDS}
                | {"is_elif": place in elifs, "orelse_is_elif": other_is_elif, "guard_needed": needed}
            )


_INLINE_FIELDS = tuple(InlineBranch.__dataclass_fields__)


def _union(values: Iterable[Value]) -> Value:
    total = _NOTHING
    for value in values:
        total |= value
    return total


def _uncalled(function: ast.expr) -> ast.expr:
    """`layer.forward` and `layer.__call__` mean the layer."""
    if isinstance(function, ast.Attribute) and function.attr in ("forward", "__call__"):
        return function.value
    return function


def _target(statement: ast.stmt, call: ast.Call) -> str:
    match statement:
        case ast.Assign(targets=targets):
            return ", ".join(map(ast.unparse, targets))
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return ast.unparse(target)
        case ast.Return():
            return "return"
    return ""


def _innermost(statement: ast.stmt, call: ast.Call) -> ast.stmt:
    """The smallest statement that holds the call."""
    for name in _STATEMENT_FIELDS:
        for inner in getattr(statement, name, ()):
            if isinstance(inner, ast.stmt) and any(node is call for node in ast.walk(inner)):
                return _innermost(inner, call)
    return statement


def _conditions(test: ast.expr) -> Iterator[str]:
    """The terms of a test that are about something else than checkpointing and training."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for value in test.values:
            yield from _conditions(value)
        return
    text = ast.unparse(test)
    if isinstance(test, ast.BoolOp | ast.UnaryOp | ast.Compare) or (
        "checkpoint" not in text and text not in ("self.training", "training", "self._requires_grad")
    ):
        yield text


def _guard(statement: ast.stmt) -> str:
    """`if use_cache: warn(...); use_cache = False` is a guard of `use_cache`."""
    match statement:
        case ast.If(test=test, body=body, orelse=[]):
            for inner in body:
                match inner:
                    case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=False | None)) if _mentions(
                        test, name
                    ):
                        return name
    return ""


def _read_later(function: ast.FunctionDef, branch: ast.If, name: str) -> bool:
    """Whether `name` is read after the branch, and no guard before the branch has switched it off already."""
    for node in ast.walk(function):
        if isinstance(node, ast.If) and node.lineno < branch.lineno and "checkpoint" in ast.unparse(node.test):
            guards = [node, *node.body]
            if any(_guard(inner) == name for inner in guards if isinstance(inner, ast.stmt)):
                return False
    end = branch.end_lineno or branch.lineno
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load) and node.lineno > end
        for node in ast.walk(function)
    )
