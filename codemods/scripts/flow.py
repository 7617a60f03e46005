"""Follows the values of one script: statements in their order, branches, names, attributes of `self`.

What a call does is left to the reader that extends `Flow`. No code is run, and no other file is read.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from ckpt_surgery.codemods.facts.syntax import dotted
from ckpt_surgery.codemods.scripts.names import Function, Names, is_distributed_data_parallel, parameters, tail
from ckpt_surgery.codemods.scripts.ranks import asks_for_several
from ckpt_surgery.codemods.scripts.values import UNTRACED, TracedValue, join, mix

NO_GRADIENT = {"no_grad", "inference_mode"}
DEEPEST = 6
_MOST_STEPS = 200_000
"""Expressions evaluated for one file: a script whose functions call each other without end stops here."""


@dataclass(slots=True)
class Frame:
    """One function as it is followed: the values of its names, where it was written, and who called it."""

    scope: str
    node: ast.AST
    cls: ast.ClassDef | None = None
    env: dict[str, TracedValue] = field(default_factory=dict)
    outer: Frame | None = None
    caller: Frame | None = None
    functions: dict[str, Function] = field(default_factory=dict)
    returns: list[TracedValue] = field(default_factory=list)
    line: int = 0
    quiet: bool = False
    """Under `no_grad`, or in a single process: no gradient has to be synchronised here."""

    def stack(self) -> tuple[tuple[int, int], ...]:
        """Every function that is being followed, and the line that it has reached."""
        above = self.caller.stack() if self.caller else ()
        return (*above, (id(self.node), self.line))

    def place(self, node: ast.expr) -> str:
        """The identity of the object an expression makes: its place, and the calls that led there."""
        above = "".join(f"{line}>" for _, line in self.caller.stack()) if self.caller else ""
        return f"{above}{node.lineno}:{node.col_offset}"

    def outermost(self) -> Frame:
        """The module's own frame."""
        return self.outer.outermost() if self.outer else self

    def may_enter(self, function: Function) -> bool:
        """Whether a function may be followed: it is not being followed already, and the calls are not too deep."""
        running = {node for node, _ in self.stack()}
        return id(function) not in running and len(running) <= DEEPEST


class Flow:
    """Follows the values of one script in the order of its statements."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.attributes: dict[tuple[str, str], TracedValue] = {}
        """What the methods of a class assign to the attributes of `self`."""
        self.steps = 0

    @property
    def gave_up(self) -> bool:
        """Whether the script was too large to follow to the end."""
        return self.steps >= _MOST_STEPS

    def call(self, frame: Frame, node: ast.Call) -> TracedValue:
        """What a call returns."""
        raise NotImplementedError

    def attribute(self, node: ast.Attribute, base: TracedValue) -> TracedValue:
        """`base.attr`, for a base that is not `self`."""
        raise NotImplementedError

    def own(self, cls: ast.ClassDef, name: str) -> TracedValue:
        """`self.name`."""
        for ancestor in self.names.lineage(cls):
            if (ancestor.name, name) in self.attributes:
                return self.attributes[ancestor.name, name]
        return TracedValue(objects=frozenset({f"{cls.name} self.{name}"}))

    def follow(
        self, caller: Frame, function: Function, cls: ast.ClassDef | None, given: dict[str, TracedValue]
    ) -> TracedValue:
        """What a function returns when it is called with these values."""
        outer = caller if function.name in caller.functions else caller.outermost()
        scope = ".".join(filter(None, [cls.name if cls else outer.scope, function.name]))
        env = {name: TracedValue(objects=frozenset({f"{scope} {name}"})) for name in parameters(function)}
        for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
            if argument.annotation and is_distributed_data_parallel(self.names.origin(argument.annotation)):
                env[argument.arg] = TracedValue(wrappers=frozenset({scope}))
        frame = Frame(scope, function, cls or outer.cls, {**env, **given}, outer, caller)
        frame.quiet = caller.quiet or any(
            tail(called(decorator)) in NO_GRADIENT for decorator in function.decorator_list
        )
        self.block(frame, function.body)
        return join(frame.returns)

    # -- statements

    def block(self, frame: Frame, statements: Sequence[ast.stmt]) -> bool:
        """Follow statements; True if control never reaches the end of the last one."""
        return any(self._statement(frame, statement) for statement in statements)

    def _statement(self, frame: Frame, statement: ast.stmt) -> bool:
        frame.line = statement.lineno
        match statement:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self.assign(frame, target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.assign(frame, target, value)
            case ast.AugAssign(target=target, value=value):
                self.bind(frame, target, mix([self.value(frame, target), self.value(frame, value)]))
            case ast.Expr(value=value):
                self.value(frame, value)
            case ast.Return(value=value):
                frame.returns.append(self.value(frame, value) if value else UNTRACED)
                return True
            case ast.Raise() | ast.Continue() | ast.Break():
                return True
            case ast.If(test=test, body=body, orelse=orelse):
                return self._branches(frame, test, body, orelse)
            case ast.For() | ast.AsyncFor():
                self.bind(frame, statement.target, self.value(frame, statement.iter).computed)
                self._maybe(frame, statement.body)
                self._maybe(frame, statement.orelse)
            case ast.While(test=test, body=body):
                self.value(frame, test)
                self._maybe(frame, body)
            case ast.With() | ast.AsyncWith():
                return self._with(frame, statement.items, statement.body)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody):
                ended = self.block(frame, body) or self.block(frame, orelse)
                for handler in handlers:
                    self._maybe(frame, handler.body)
                return self.block(frame, finalbody) or (ended and not handlers)
            case ast.FunctionDef() | ast.AsyncFunctionDef() if frame.outer:
                frame.functions[statement.name] = statement
                if frame.may_enter(statement):
                    self.follow(frame, statement, None, {})
        return False

    def _branches(self, frame: Frame, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt]) -> bool:
        self.value(frame, test)
        before, quiet = frame.env, frame.quiet
        several = asks_for_several(test)
        going_on: list[tuple[dict[str, TracedValue], bool]] = []
        for statements, truth in ((body, True), (orelse, False)):
            frame.env = dict(before)
            frame.quiet = quiet or (several is not None and several != truth)  # one process needs no wrapper
            self._narrow(frame, test, truth)
            if not self.block(frame, statements):
                going_on.append((frame.env, frame.quiet))
        frame.env = _joined([env for env, _ in going_on])
        frame.quiet = all(alone for _, alone in going_on)
        return not going_on

    def _maybe(self, frame: Frame, body: list[ast.stmt]) -> None:
        """Statements that may or may not run."""
        before = frame.env
        frame.env = dict(before)
        self.block(frame, body)
        frame.env = _joined([before, frame.env])

    def _with(self, frame: Frame, items: list[ast.withitem], body: list[ast.stmt]) -> bool:
        quiet = frame.quiet
        for item in items:
            value = self.value(frame, item.context_expr)
            if item.optional_vars:
                self.bind(frame, item.optional_vars, value)
            if tail(called(item.context_expr)) in NO_GRADIENT:
                frame.quiet = True
        ended = self.block(frame, body)
        frame.quiet = quiet
        return ended

    def _narrow(self, frame: Frame, test: ast.expr, truth: bool) -> None:
        """What a test shows in the branch where it is true, or false: is this the wrapper, or the bare model?"""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._narrow(frame, operand, not truth)
            case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) == truth:
                for value in values:
                    self._narrow(frame, value, truth)
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[right]):
                if isinstance(op, ast.Is) == truth:
                    for side in (left, right):
                        if self.value(frame, side).inners:
                            self.bind(frame, side, UNTRACED)
            case ast.Call(func=ast.Name(id="isinstance"), args=[subject, kinds]):
                if any(is_distributed_data_parallel(self.names.origin(kind)) for kind in _items(kinds)):
                    wrappers = self.value(frame, subject).wrappers or frozenset({dotted(subject)})
                    self.bind(frame, subject, TracedValue(wrappers=wrappers) if truth else UNTRACED)
            case ast.Call(func=ast.Name(id="hasattr"), args=[subject, ast.Constant(value="module")]) if not truth:
                self.bind(frame, subject, UNTRACED)

    # -- names

    def assign(self, frame: Frame, target: ast.expr, value: ast.expr) -> None:
        """`target = value`."""
        match target, value:
            case (ast.Tuple(elts=targets), ast.Tuple(elts=items)) if len(targets) == len(items):
                values = [self.value(frame, item) for item in items]
                for inner_target, inner_value in zip(targets, values, strict=True):
                    self.bind(frame, inner_target, inner_value)
            case _:
                self.bind(frame, target, self.value(frame, value))

    def bind(self, frame: Frame, target: ast.expr, value: TracedValue) -> None:
        """Bind a target to a value."""
        match target:
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                for index, inner_target in enumerate(targets):
                    self.bind(frame, inner_target, value.item(index))
            case ast.Starred(value=inner):
                self.bind(frame, inner, value)
            case ast.Subscript(value=container):
                self.bind(frame, container, join([self.value(frame, container), value.computed]))
            case ast.Name() | ast.Attribute() if name := dotted(target):
                frame.env[name] = value
                head, _, attribute = name.partition(".")
                if head == "self" and frame.cls and attribute:
                    key = (frame.cls.name, attribute)
                    self.attributes[key] = join([self.attributes.get(key, value), value])

    def _named(self, frame: Frame | None, name: str) -> TracedValue | None:
        while frame:
            if name in frame.env:
                return frame.env[name]
            frame = frame.outer
        return None

    # -- expressions

    def value(self, frame: Frame, node: ast.expr) -> TracedValue:
        """The value of an expression."""
        self.steps += 1
        if self.gave_up:
            return UNTRACED
        match node:
            case ast.Name(id=name):
                return self._named(frame, name) or UNTRACED
            case ast.Attribute(value=inner):
                named = self._named(frame, dotted(node)) if dotted(node) else None
                if named is not None:
                    return named
                if isinstance(inner, ast.Name) and inner.id == "self" and frame.cls:
                    return self.own(frame.cls, node.attr)
                return self.attribute(node, self.value(frame, inner))
            case ast.Call():
                return self.call(frame, node)
            case ast.Subscript(value=inner) | ast.Starred(value=inner) | ast.Await(value=inner):
                return self.value(frame, inner)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=inner):
                return self.value(frame, inner)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._choice(frame, test, body, orelse)
            case ast.BinOp(left=left, right=right):
                return mix([self.value(frame, left), self.value(frame, right)])
            case ast.NamedExpr(target=target, value=inner):
                self.assign(frame, target, inner)
                return self.value(frame, target)
            case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Dict(values=items) | ast.BoolOp(values=items):
                return join([self.value(frame, item) for item in items])
            case ast.ListComp(elt=item, generators=loops) | ast.GeneratorExp(elt=item, generators=loops):
                for loop in loops:
                    self.bind(frame, loop.target, self.value(frame, loop.iter).computed)
                return self.value(frame, item)
        return UNTRACED

    def _choice(self, frame: Frame, test: ast.expr, body: ast.expr, orelse: ast.expr) -> TracedValue:
        before = frame.env
        values: list[TracedValue] = []
        for part, truth in ((body, True), (orelse, False)):
            frame.env = dict(before)
            self._narrow(frame, test, truth)
            values.append(self.value(frame, part))
        frame.env = before
        return join(values)


def called(node: ast.expr) -> ast.expr:
    """The callee of a call; anything else as it is."""
    return node.func if isinstance(node, ast.Call) else node


def _joined(envs: list[dict[str, TracedValue]]) -> dict[str, TracedValue]:
    names = dict.fromkeys(name for env in envs for name in env)
    return {name: join([env[name] for env in envs if name in env]) for name in names}


def _items(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]
