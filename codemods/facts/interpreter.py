"""Follow a function's statements, for all facts that trace values through code.

It knows the order of statements, which of them may not run, and what a name holds where branches meet. What a value
is, and what calls and attributes make of values, is up to the subclass. No code is run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, TypeAlias

from ckpt_surgery.codemods.facts.evaluator import Condition, Evaluator, V

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Interpreter(Evaluator[V]):
    """Follows statements from top to bottom.

    A branch that returns or raises does not reach the code after it, which then has the other outcome of the test as a
    condition. A loop's body runs `passes` times or never: what one pass sets reaches the next.
    """

    passes: ClassVar[int] = 1
    handlers: ClassVar[bool] = True
    """Whether exception handlers are followed too."""

    def __init__(self, env: Mapping[str, V] | None = None) -> None:
        super().__init__(env)
        self.statement: ast.stmt = ast.Pass()
        """The statement that is being followed."""
        self.tries = 0
        """How many `try` statements it is in."""
        self.returned: list[V] = []
        self._exits: list[list[dict[str, V]]] = []
        """For each loop, the values of names at each of its `break` and `continue` statements."""

    def define(self, node: Function | ast.ClassDef) -> None:
        """Note a function or class defined among the statements. It is not entered."""

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
        self.conditions = conditions  # what branches that left imply holds up to the end of their block
        return ended

    def enter(self, statements: Iterable[ast.stmt], env: dict[str, V]) -> list[V]:
        """Follow the body of another function, with `env` for its names; return the values that it returns."""
        outer = self.env, self.statement, self.returned, self._exits
        self.env, self.returned, self._exits = env, [], []
        self.follow(statements)
        returned = self.returned
        self.env, self.statement, self.returned, self._exits = outer
        return returned

    def _other(self, node: ast.stmt) -> None:
        self.parts(node)

    def _expression(self, node: ast.Expr) -> None:
        self.value(node.value)

    def _assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self.assign(target, node.value)

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
        continuing: list[tuple[dict[str, V], Condition]] = []
        for truth in (True, False):
            condition = Condition(node.test, truth)
            self.env, self.conditions = dict(before), (*conditions, condition)
            self.assume(node.test, truth)
            if not self.side(node, truth):
                continuing.append((self.env, condition))
        self.env = self.joined([env for env, _ in continuing]) if continuing else before
        self.conditions = (*conditions, continuing[0][1]) if len(continuing) == 1 else conditions
        return not continuing

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        items = [] if isinstance(node, ast.While) else self.items(node.target, node.iter)
        conditions = self.conditions
        self.loops += (node,)
        self._exits.append([])
        for _ in range(self.passes):
            never, before, self.statement = self.env, dict(self.env), node
            self.env = dict(before)
            self._bind_all(items)
            if isinstance(node, ast.While):
                self.value(node.test)
                self.conditions = (*conditions, Condition(node.test, True))
                self.assume(node.test, True)
            ended = self.follow(node.body)
            self.conditions = conditions
            self.env = self.joined([never, *([] if ended else [self.env]), *self._exits[-1]])
            if self.env == before:
                break  # what this pass set reaches nothing in the next
        self._exits.pop()
        self.loops = self.loops[:-1]
        self.follow(node.orelse)

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
        continuing = [] if ended else [after]
        for handler in node.handlers if self.handlers else ():
            self.env = self.joined([dict(before), after])
            if not self.follow(handler.body):
                continuing.append(self.env)
        self.env = self.joined([*continuing, after]) if node.finalbody or not continuing else self.joined(continuing)
        ended = self.follow(node.finalbody) or not continuing
        self.tries -= 1
        return ended

    def _match(self, node: ast.Match) -> None:
        self.value(node.subject)
        before, conditions = self.env, self.conditions
        continuing = [before]
        self.conditions = (*conditions, Condition(node.subject, True))
        for case in node.cases:
            self.env, self.statement = dict(before), node
            if case.guard is not None:
                self.value(case.guard)
            if not self.follow(case.body):
                continuing.append(self.env)
        self.env, self.conditions = self.joined(continuing), conditions

    def joined(self, envs: Sequence[dict[str, V]]) -> dict[str, V]:
        """Return the values of names where several paths meet, in the first of `envs`."""
        first = envs[0]
        for other in envs[1:]:
            for name, value in other.items() if other != first else ():
                mine = first.get(name, value)
                if mine is not value:
                    value = self.join([mine, value])
                first[name] = value
        return first


_STATEMENTS: Mapping[type[ast.stmt], str] = {
    ast.Assign: "_assign",
    ast.Expr: "_expression",
    ast.AnnAssign: "_annotated",
    ast.AugAssign: "augment",
    ast.Return: "_leave",
    ast.Raise: "_leave",
    ast.Break: "_exit",
    ast.Continue: "_exit",
    ast.If: "_if",
    ast.For: "_loop",
    ast.AsyncFor: "_loop",
    ast.While: "_loop",
    ast.With: "_with",
    ast.AsyncWith: "_with",
    ast.Try: "_try",
    ast.TryStar: "_try",
    ast.Match: "_match",
    ast.FunctionDef: "define",
    ast.AsyncFunctionDef: "define",
    ast.ClassDef: "define",
}
