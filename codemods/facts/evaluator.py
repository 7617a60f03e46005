"""Evaluate expressions: the half of the interpreter that is not about statements."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from ckpt_surgery.codemods.facts.syntax import last_name

V = TypeVar("V")
Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
SAME_ITEMS = frozenset({"iter", "list", "reversed", "sorted", "tqdm", "tuple"})
"""Functions whose result has the items of their first argument."""
_PAIRS = frozenset({"items", "named_children", "named_modules"})
"""Methods that yield pairs of a key and an item."""


class Condition(NamedTuple):
    """A test that decides whether a statement runs, and the outcome with which it does."""

    test: ast.expr
    truth: bool


class Evaluator(Generic[V]):
    """Evaluates expressions; `env` holds the values of names."""

    nothing: V
    """The value of everything that is not followed."""

    def __init__(self, env: Mapping[str, V] | None = None) -> None:
        self.env: dict[str, V] = dict(env or {})
        self.conditions: tuple[Condition, ...] = ()
        """The conditions under which the statement or expression runs, outermost first."""
        self.loops: tuple[ast.AST, ...] = ()
        """The loops and comprehensions around it, outermost first."""
        self._walrus: set[str] = set()
        """The names that `:=` has bound."""

    # -- what a subclass defines for its values

    def join(self, values: Sequence[V]) -> V:
        """Return the value of what may be any of these."""
        raise NotImplementedError

    def compute(self, values: Sequence[V]) -> V:
        """Return what an operator computes from the values."""
        return self.join(values) if values else self.nothing

    def contain(self, values: Sequence[V]) -> V:
        """Return a list, tuple, set or dict of the values."""
        return self.join(values) if values else self.nothing

    def collect(self, item: V) -> V:
        """Return the value of a comprehension of such items."""
        return self.contain([item])

    def item(self, container: V) -> V:
        """Return what a loop over the value yields."""
        return container

    def part(self, value: V, position: int) -> V:
        """Return what one name gets when the value is unpacked into several."""
        return self.item(value)

    def rest(self, value: V) -> V:
        """Return what a starred name gets when the value is unpacked."""
        return value

    def spread(self, value: V) -> V:
        """Return what `*value` adds to a list or to the arguments of a call."""
        return value

    def name(self, node: ast.Name) -> V:
        """Return the value of a name."""
        return self.env.get(node.id, self.nothing)

    def attribute(self, node: ast.Attribute, base: V) -> V:
        """Return the value of `base.name`."""
        return self.nothing

    def subscript(self, node: ast.Subscript) -> V:
        """Return the value of `base[index]`."""
        self.value(node.slice)
        return self.item(self.value(node.value))

    def call(self, node: ast.Call) -> V:
        """Return what a call returns."""
        return self._rest(node)

    def function(self, node: ast.Lambda) -> V:
        """Return the value of a lambda, which is not entered."""
        return self.nothing

    def compare(self, node: ast.Compare | ast.UnaryOp) -> V:
        """Return the outcome of a comparison, or of `not`."""
        return self._rest(node)

    def store(self, target: ast.Attribute | ast.Subscript, value: V) -> None:
        """Note that an attribute or an item is set."""

    def assume(self, test: ast.expr, truth: bool) -> None:
        """Note what a test with this outcome implies."""

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
        """Return the targets that `for target in iterable` binds, each with its value; knows `zip` and `enumerate`."""
        match iterable, target:
            case ast.Call(func=function, args=[first, *_]), _ if last_name(function) in SAME_ITEMS:
                return self.items(target, first)
            case ast.Call(func=ast.Name(id="enumerate"), args=[first, *_]), ast.Tuple(elts=[_, inner]) as target:
                return [(target.elts[0], self.nothing), *self.items(inner, first)]
            case ast.Call(func=ast.Name(id="zip"), args=every), ast.Tuple(elts=targets):
                return [pair for inner, item in zip(targets, every, strict=False) for pair in self.items(inner, item)]
            case ast.Call(func=ast.Attribute(value=mapping, attr=name)), ast.Tuple(elts=[*keys, last]) if (
                name in _PAIRS
            ):
                return [*((key, self.nothing) for key in keys), (last, self.item(self.value(mapping)))]
        return [(target, self.item(self.value(iterable)))]

    def _bind_all(self, items: Iterable[tuple[ast.expr, V]]) -> None:
        for target, value in items:
            self.bind(target, value)

    # -- expressions

    def value(self, node: ast.expr) -> V:
        """Return what an expression holds, after following the calls inside it."""
        value: V = getattr(self, _EXPRESSIONS.get(node.__class__, "_rest"))(node)
        return value

    def _constant(self, node: ast.Constant) -> V:
        return self.nothing

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
                elif isinstance(inner, ast.keyword | ast.comprehension):
                    self.parts(inner)

    def choice(self, node: ast.IfExp) -> V:
        """Return the value of `body if test else orelse`."""
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
        operands: list[ast.expr] = [node.right]
        while isinstance(left := node.left, ast.BinOp):  # no recursion, which a long sum would exhaust
            node = left
            operands.append(node.right)
        return self.compute([self.value(operand) for operand in (node.left, *reversed(operands))])

    def _unary(self, node: ast.UnaryOp) -> V:
        return self.compare(node) if isinstance(node.op, ast.Not) else self.value(node.operand)

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
        self.env, inner, self.loops = before, self.env, loops
        self.env.update((name, inner[name]) for name in self._walrus & inner.keys())
        return self.collect(made)

    def _named(self, node: ast.NamedExpr) -> V:
        value = self.value(node.value)
        self.bind(node.target, value)
        self._walrus.add(node.target.id)
        return value

    def _inner(self, node: ast.Starred | ast.Await) -> V:
        value = self.value(node.value)
        return self.spread(value) if isinstance(node, ast.Starred) else value


_EXPRESSIONS: Mapping[type[ast.expr], str] = {
    ast.Constant: "_constant",
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
