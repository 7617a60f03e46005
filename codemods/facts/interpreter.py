"""One reader of a function's statements, for all facts that follow values through code.

It knows the order of statements, which of them may not run, and what a name holds where branches meet. What a value
is, and what calls and attributes make of values, is left to the reader that extends it. No code is run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from ckpt_surgery.codemods.facts.syntax import dotted

V = TypeVar("V")
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
Loop: TypeAlias = ast.For | ast.AsyncFor | ast.While | Comprehension
SAME_ITEMS = frozenset({"iter", "list", "reversed", "sorted", "tqdm", "tuple"})
"""Functions whose result holds what their first argument holds."""
_PAIRS = frozenset({"items", "named_children", "named_modules"})


class Condition(NamedTuple):
    """A test that decides whether a statement runs, and what its outcome is where the statement does."""

    test: ast.expr
    truth: bool


class Interpreter(Generic[V]):
    """Follows statements from top to bottom, with what names hold in `env`.

    A branch that returns or raises does not reach what follows it, and what follows then has the other outcome of the
    test as a condition. A loop's body runs `passes` times or never: what one pass sets reaches the next.
    """

    nothing: V
    """The value of all that is not followed."""
    passes: ClassVar[int] = 1

    def __init__(self, env: Mapping[str, V] | None = None) -> None:
        self.env: dict[str, V] = dict(env or {})
        self.conditions: tuple[Condition, ...] = ()
        """What decides whether the statement or expression runs, the outermost first."""
        self.loops: tuple[Loop, ...] = ()
        """The loops around it, the outermost first."""
        self.statement: ast.stmt = ast.Pass()
        """The statement that is being followed."""
        self.tries = 0
        """How many `try` statements it is in."""
        self.returned: list[V] = []
        self._exits: list[list[dict[str, V]]] = []
        """What names hold where `break` and `continue` leave each of the loops."""

    # -- what a reader says of its values

    def join(self, values: Sequence[V]) -> V:
        """Any one of the values."""
        raise NotImplementedError

    def compute(self, values: Sequence[V]) -> V:
        """What is computed from the values by an operator."""
        return self.join(values) if values else self.nothing

    def contain(self, values: Sequence[V]) -> V:
        """A list, tuple, set or dict of the values."""
        return self.join(values) if values else self.nothing

    def collect(self, item: V) -> V:
        """What a comprehension of such items makes."""
        return self.contain([item])

    def item(self, container: V) -> V:
        """What a loop over the value yields."""
        return container

    def part(self, value: V, position: int) -> V:
        """What one name gets where the value is unpacked into several."""
        return self.item(value)

    def rest(self, value: V) -> V:
        """What a starred name gets there."""
        return value

    def spread(self, value: V) -> V:
        """What `*value` adds to a list or to the arguments of a call."""
        return value

    def name(self, node: ast.Name) -> V:
        """The value of a name."""
        return self.env.get(node.id, self.nothing)

    def attribute(self, node: ast.Attribute, base: V) -> V:
        """The value of `base.name`."""
        return self.nothing

    def subscript(self, node: ast.Subscript) -> V:
        """The value of `base[index]`."""
        self.value(node.slice)
        return self.item(self.value(node.value))

    def call(self, node: ast.Call) -> V:
        """What a call returns."""
        self.parts(node)
        return self.nothing

    def function(self, node: ast.Lambda) -> V:
        """The value of a lambda, which is not entered."""
        return self.nothing

    def compare(self, node: ast.Compare) -> V:
        """The outcome of a comparison."""
        self.parts(node)
        return self.nothing

    def store(self, target: ast.Attribute | ast.Subscript, value: V) -> None:
        """Note that an attribute or an item is set."""

    def define(self, node: Function | ast.ClassDef) -> None:
        """Note a function or class that is defined among the statements. It is not entered."""

    def assume(self, test: ast.expr, truth: bool) -> None:
        """Note what the outcome of a test shows where it holds."""

    def side(self, node: ast.If, truth: bool) -> bool:
        """Follow one side of an `if`; True if control never reaches its end."""
        return self.follow(node.body if truth else node.orelse)

    def inside(self, node: ast.With | ast.AsyncWith) -> bool:
        """Follow what runs in a context; True if control never reaches its end."""
        return self.follow(node.body)

    # -- statements

    def follow(self, statements: Iterable[ast.stmt]) -> bool:
        """Follow statements in their order; True if control never reaches the end of the last one."""
        conditions, ended = self.conditions, False
        for statement in statements:
            self.statement = statement
            if getattr(self, _STATEMENTS.get(statement.__class__, "_other"))(statement):
                ended = True
                break
        self.conditions = conditions  # those of branches that left hold up to the end of their block
        return ended

    def enter(self, statements: Iterable[ast.stmt], env: dict[str, V]) -> list[V]:
        """Follow the body of another function, where names hold what `env` says; return what it returns."""
        outer = self.env, self.statement, self.returned, self._exits
        self.env, self.returned, self._exits = env, [], []
        self.follow(statements)
        returned = self.returned
        self.env, self.statement, self.returned, self._exits = outer
        return returned

    def _other(self, node: ast.stmt) -> None:
        self.parts(node)

    def _assign(self, node: ast.Assign) -> None:
        if len(node.targets) == 1:
            self.assign(node.targets[0], node.value)
        else:
            value = self.value(node.value)
            for target in node.targets:
                self.bind(target, value)

    def _annotated(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, node.value)

    def augment(self, node: ast.AugAssign) -> None:
        """Follow `target += value`."""
        self.bind(node.target, self.compute([self.value(node.target), self.value(node.value)]))

    def _leave(self, node: ast.Return | ast.Raise) -> bool:
        if isinstance(node, ast.Return) and node.value is not None:
            self.returned.append(self.value(node.value))
        else:
            self.parts(node)
        return True

    def _exit(self, node: ast.stmt) -> bool:
        if self._exits:
            self._exits[-1].append(self.env)
        return True

    def _if(self, node: ast.If) -> bool:
        self.value(node.test)
        before, conditions = self.env, self.conditions
        going_on: list[tuple[dict[str, V], Condition]] = []
        for truth in (True, False):
            condition = Condition(node.test, truth)
            self.env, self.conditions = dict(before), (*conditions, condition)
            self.assume(node.test, truth)
            if not self.side(node, truth):
                going_on.append((self.env, condition))
        self.env = self.joined([env for env, _ in going_on]) if going_on else before
        self.conditions = (*conditions, going_on[0][1]) if len(going_on) == 1 else conditions
        return not going_on

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        items = self.items(node.target, node.iter)
        self._loop(node, lambda: self._bind_all(items))

    def _bind_all(self, items: Iterable[tuple[ast.expr, V]]) -> None:
        for target, value in items:
            self.bind(target, value)

    def _while(self, node: ast.While) -> None:
        self._loop(node, lambda: self._holds(node.test))

    def _holds(self, test: ast.expr) -> None:
        self.value(test)
        self.conditions = (*self.conditions, Condition(test, True))
        self.assume(test, True)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, head: Callable[[], None]) -> None:
        conditions = self.conditions
        self.loops += (node,)
        self._exits.append([])
        for _ in range(self.passes):
            before = dict(self.env)
            self.maybe(node.body, head)
            self.conditions = conditions
            if self.env == before:
                break  # what this pass set reaches nothing in the next
        self.env = self.joined([self.env, *self._exits.pop()])
        self.loops = self.loops[:-1]
        self.follow(node.orelse)

    def maybe(self, statements: Iterable[ast.stmt], head: Callable[[], None] = lambda: None) -> None:
        """Follow statements that may run or not."""
        before = self.env
        self.env = dict(before)
        head()
        ended = self.follow(statements)
        self.env = before if ended else self.joined([before, self.env])

    def _with(self, node: ast.With | ast.AsyncWith) -> bool:
        for item in node.items:
            value = self.value(item.context_expr)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value)
        return self.inside(node)

    def _try(self, node: ast.Try) -> bool:
        self.tries += 1
        before = dict(self.env)
        ended = self.follow([*node.body, *node.orelse])
        after = self.env
        going_on = [] if ended else [after]
        for handler in node.handlers:
            self.env = self.joined([dict(before), after])
            if not self.follow(handler.body):
                going_on.append(self.env)
        self.env = self.joined(going_on) if going_on else after
        self.tries -= 1
        return self.follow(node.finalbody) or not going_on

    def _match(self, node: ast.Match) -> None:
        self.value(node.subject)
        before, conditions = self.env, self.conditions
        going_on = [before]
        self.conditions = (*conditions, Condition(node.subject, True))
        for case in node.cases:
            self.env = dict(before)
            if case.guard is not None:
                self.value(case.guard)
            if not self.follow(case.body):
                going_on.append(self.env)
        self.env, self.conditions = self.joined(going_on), conditions

    def joined(self, envs: Sequence[dict[str, V]]) -> dict[str, V]:
        """What names hold where several ways meet. The first of them is changed."""
        first = envs[0]
        for other in envs[1:]:
            for name, value in other.items():
                mine = first.get(name, value)
                first[name] = value if mine is value else self.join([mine, value])
        return first

    # -- names

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        """Follow `target = value`."""
        match target, value:
            case (ast.Tuple() | ast.List(), ast.Tuple() | ast.List()) if len(target.elts) == len(value.elts):
                values = [self.value(item) for item in value.elts]
                for inner, item in zip(target.elts, values, strict=True):
                    self.bind(inner, item)
            case _:
                self.bind(target, self.value(value))

    def bind(self, target: ast.expr, value: V) -> None:
        """Bind a target to a value."""
        match target:
            case ast.Name(id=name):
                self.env[name] = value
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                for position, inner in enumerate(targets):
                    self.bind(inner, self.part(value, position))
            case ast.Starred(value=inner):
                self.bind(inner, self.rest(value))
            case ast.Attribute() | ast.Subscript():
                self.store(target, value)

    def items(self, target: ast.expr, iterable: ast.expr) -> list[tuple[ast.expr, V]]:
        """What `for target in iterable` binds, and to what, also where it goes over several at once."""
        match iterable, target:
            case ast.Call(func=function, args=[first, *_]), _ if dotted(function).rpartition(".")[2] in SAME_ITEMS:
                return self.items(target, first)
            case ast.Call(func=ast.Name(id="enumerate"), args=[first, *_]), ast.Tuple(elts=[_, inner]):
                return self.items(inner, first)
            case ast.Call(func=ast.Name(id="zip"), args=every), ast.Tuple(elts=targets):
                return [pair for inner, item in zip(targets, every, strict=False) for pair in self.items(inner, item)]
            case ast.Call(func=ast.Attribute(value=mapping, attr=name)), ast.Tuple(elts=[*_, last]) if name in _PAIRS:
                return [(last, self.item(self.value(mapping)))]
        return [(target, self.item(self.value(iterable)))]

    # -- expressions

    def value(self, node: ast.expr) -> V:
        """What an expression holds; the calls inside it are followed."""
        kind = node.__class__
        if kind is ast.Constant:
            return self.nothing
        value: V = getattr(self, _EXPRESSIONS.get(kind, "_rest"))(node)
        return value

    def _rest(self, node: ast.expr) -> V:
        self.parts(node)
        return self.nothing

    def _attribute(self, node: ast.Attribute) -> V:
        return self.attribute(node, self.value(node.value))

    def parts(self, node: ast.AST) -> None:
        """Follow every expression directly inside a node."""
        for field in node._fields:
            part = getattr(node, field, None)
            for inner in part if part.__class__ is list else (part,):
                if isinstance(inner, ast.expr):
                    self.value(inner)
                elif isinstance(inner, ast.keyword):
                    self.value(inner.value)

    def choice(self, node: ast.IfExp) -> V:
        """The value of `body if test else orelse`."""
        self.value(node.test)
        before, conditions = self.env, self.conditions
        values: list[V] = []
        for truth, side in ((True, node.body), (False, node.orelse)):
            self.env, self.conditions = dict(before), (*conditions, Condition(node.test, truth))
            self.assume(node.test, truth)
            values.append(self.value(side))
        self.env, self.conditions = before, conditions
        return self.join(values)

    def _operands(self, node: ast.BoolOp) -> V:
        conditions, values = self.conditions, list[V]()
        for operand in node.values:
            values.append(self.value(operand))
            self.conditions = (*self.conditions, Condition(operand, isinstance(node.op, ast.And)))
        self.conditions = conditions
        return self.join(values)

    def _binary(self, node: ast.BinOp) -> V:
        return self.compute([self.value(node.left), self.value(node.right)])

    def _unary(self, node: ast.UnaryOp) -> V:
        value = self.value(node.operand)
        return self.nothing if isinstance(node.op, ast.Not) else value

    def _container(self, node: ast.Tuple | ast.List | ast.Set) -> V:
        return self.contain([self.value(item) for item in node.elts])

    def _dict(self, node: ast.Dict) -> V:
        for key in node.keys:
            if key is not None:
                self.value(key)
        return self.contain([self.value(item) for item in node.values])

    def _comprehension(self, node: Comprehension) -> V:
        before, loops = self.env, self.loops
        self.env = dict(before)
        for generator in node.generators:
            self._bind_all(self.items(generator.target, generator.iter))
            self.loops = (*loops, node)
            for test in generator.ifs:
                self.value(test)
        if isinstance(node, ast.DictComp):
            self.value(node.key)
        made = self.value(node.value if isinstance(node, ast.DictComp) else node.elt)
        self.env, self.loops = before, loops
        return self.collect(made)

    def _named(self, node: ast.NamedExpr) -> V:
        value = self.value(node.value)
        self.bind(node.target, value)
        return value

    def _inner(self, node: ast.Starred | ast.Await) -> V:
        value = self.value(node.value)
        return self.spread(value) if isinstance(node, ast.Starred) else value


_STATEMENTS: Mapping[type[ast.stmt], str] = {
    ast.Assign: "_assign",
    ast.AnnAssign: "_annotated",
    ast.AugAssign: "augment",
    ast.Return: "_leave",
    ast.Raise: "_leave",
    ast.Break: "_exit",
    ast.Continue: "_exit",
    ast.If: "_if",
    ast.For: "_for",
    ast.AsyncFor: "_for",
    ast.While: "_while",
    ast.With: "_with",
    ast.AsyncWith: "_with",
    ast.Try: "_try",
    ast.TryStar: "_try",
    ast.Match: "_match",
    ast.FunctionDef: "define",
    ast.AsyncFunctionDef: "define",
    ast.ClassDef: "define",
}
_EXPRESSIONS: Mapping[type[ast.expr], str] = {
    ast.Name: "name",
    ast.Attribute: "_attribute",
    ast.Call: "call",
    ast.Subscript: "subscript",
    ast.IfExp: "choice",
    ast.Lambda: "function",
    ast.Compare: "compare",
    ast.BoolOp: "_operands",
    ast.BinOp: "_binary",
    ast.UnaryOp: "_unary",
    ast.Tuple: "_container",
    ast.List: "_container",
    ast.Set: "_container",
    ast.Dict: "_dict",
    ast.ListComp: "_comprehension",
    ast.SetComp: "_comprehension",
    ast.GeneratorExp: "_comprehension",
    ast.DictComp: "_comprehension",
    ast.NamedExpr: "_named",
    ast.Starred: "_inner",
    ast.Await: "_inner",
}
