"""How many modules a local function calls: one that is checkpointed keeps what is between several."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence

from ckpt_surgery.codemods.facts.interpreter import Function
from ckpt_surgery.codemods.facts.module_flow import ModuleFlow, Value
from ckpt_surgery.codemods.facts.syntax import dotted


class _CallCounter(ModuleFlow):
    """Counts the calls of modules in a local function; one in a loop counts twice."""

    passes = 1

    def __init__(self, env: dict[str, Value], functions: Collection[str]) -> None:
        super().__init__(env)
        self.calls = 0
        self.calls_of: set[str] = set()
        """The names that are called."""
        self._functions = functions
        self._taken: dict[int, int] = {}

    def count(self, function: Function, given: Mapping[str, Value]) -> None:
        """Count the calls of a function and of those that it defines."""
        self.enter(function.body, self.env | self.defaults(function.args) | dict(given))

    def define(self, node: Function | ast.ClassDef) -> None:
        """Count what a function inside calls."""
        if isinstance(node, Function):
            self.count(node, {})

    def side(self, node: ast.If, truth: bool) -> bool:
        """Count the side of an `if` that calls more."""
        before = self.calls
        ended = super().side(node, truth)
        if truth:
            self._taken[id(node)], self.calls = self.calls - before, before
        else:
            self.calls = before + max(self._taken[id(node)], self.calls - before)
        return ended

    def called(self, node: ast.Call, base: Value, callee: Value, values: Sequence[Value]) -> Value:
        """Count it; a local function that is called may call several."""
        name = dotted(node.func)
        self.calls_of.add(name)
        if callee.paths:
            self.calls += 2 if self.loops else 1
        elif name in self._functions:
            self.calls += 2
        return super().called(node, base, callee, values)


def calls_several(
    function: Function, env: Mapping[str, Value], functions: Collection[str], given: Mapping[str, Value] = {}
) -> bool:
    """Tell whether a local function calls other than one module once.

    That is: several, one in a loop, or none that is understood.

    Local `functions` that it calls count as several. `given` are the values of its parameters. Modules that
    it is handed with the checkpoint call are not counted, as in Idefics of transformers 4.52.
    """
    counter = _CallCounter(dict(env), functions)
    counter.count(function, given)
    handed = {node.arg for node in function.args.args} - {name for name, value in given.items() if value.paths}
    if not counter.calls and counter.calls_of & handed:
        return False
    return counter.calls != 1
