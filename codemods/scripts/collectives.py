"""Which collectives of a script some ranks call and others do not.

Every function is followed twice: as a rank on which each test of ranks (or of a missing gradient) is true, and as one
on which it is false. A collective that only one of them calls is a finding; one that both call, in any branch, is not.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ckpt_surgery.codemods.facts.interpreter import Function, Interpreter
from ckpt_surgery.codemods.facts.script_facts import Collective, Spot
from ckpt_surgery.codemods.facts.syntax import dotted, span_of
from ckpt_surgery.codemods.scripts.names import Names, is_accelerator, keywords, tail
from ckpt_surgery.codemods.scripts.ranks import RankTest, RankTests

_POSITIONS = {
    0: "barrier monitored_barrier",
    2: "all_reduce broadcast all_gather all_to_all all_gather_into_tensor all_gather_object broadcast_object_list",
    3: "reduce gather scatter reduce_scatter reduce_scatter_tensor gather_object scatter_object_list",
    4: "all_to_all_single",
}
_GROUP_AT = {name: position for position, names in _POSITIONS.items() for name in names.split()}
"""The collectives of torch.distributed, and the position of each one's `group` argument."""
_ACCELERATOR = {"wait_for_everyone", "gather", "gather_for_metrics", "reduce", "pad_across_processes"}


class _Called(NamedTuple):
    """A call of a collective, and the test of ranks that led there, if any did."""

    node: ast.Call
    first_line: int
    test: RankTest | None


Calls: TypeAlias = dict[str, tuple[_Called, ...]]
"""The calls of each collective."""


def collectives(names: Names) -> Iterator[Collective]:
    """The collectives of a script that only some ranks call."""
    tests = RankTests(names)
    always: dict[str, list[str]] = {}
    """The collectives that the script's own functions call on every rank."""
    for name, function in names.functions.items():
        first, other = (_RankWalk(names, tests, {}, first).calls(function.body) for first in (True, False))
        counts = [Counter({name: len(calls) for name, calls in kind.items()}) for kind in (first, other)]
        always[name] = list(counts[0].elements()) if counts[0] == counts[1] else []
    for scope, statements in names.scopes():
        first, other = (_RankWalk(names, tests, always, first).calls(statements) for first in (True, False))
        found: dict[Spot, Collective] = {}
        left: set[RankTest] = set()
        for call, test in [*_more(first, other), *_more(other, first)]:
            if test not in left:  # where the other ranks have left, the first collective is enough
                left |= {test} if test.left else set()
                spot = Spot(span_of(call.node), call.first_line, scope)
                found[spot] = Collective(spot, dotted(call.node.func), test.text, test.line, test.depends_on)
        yield from found.values()


def _more(here: Calls, there: Calls) -> Iterator[tuple[_Called, RankTest]]:
    """The calls on one kind of rank to which none on the other kind corresponds, and the test that decides."""
    for name, calls in here.items():
        more = len(calls) - len(there.get(name, ()))
        tested = [(call, call.test) for call in calls if call.test]
        yield from tested[-more:] if more > 0 else ()


class _RankWalk(Interpreter[tuple[_Called, ...]]):
    """Finds what one kind of rank calls; on the `first` kind each test of ranks is true.

    Instead of names, `env` holds collectives: the calls of each that have led to a place.
    """

    nothing = ()
    handlers = False

    def __init__(self, names: Names, tests: RankTests, always: Mapping[str, Sequence[str]], first: bool) -> None:
        super().__init__()
        self.names = names
        self.tests = tests
        self.always = always
        self.first = first
        self.under: RankTest | None = None
        self.gone = False

    def calls(self, statements: Sequence[ast.stmt]) -> Calls:
        """The collectives that statements call."""
        self.follow(statements)
        return self.env

    def follow(self, statements: Iterable[ast.stmt]) -> bool:
        """Follow a block. Ranks that left in it are gone up to its end; what has been called stays called."""
        under, gone = self.under, self.gone
        super().follow(statements)
        self.under, self.gone = under, gone
        return False

    def join(self, values: Sequence[tuple[_Called, ...]]) -> tuple[_Called, ...]:
        """A collective that both sides of a test call is called once."""
        return max(values, key=len)

    def side(self, node: ast.If, truth: bool) -> bool:
        """Follow the side that this kind of rank takes, or both where all ranks take the same."""
        test = self.tests.of(node.test)
        if test is None:
            return super().side(node, truth)
        if (test.first == self.first) == truth:
            mine, other = (node.body, node.orelse) if truth else (node.orelse, node.body)
            under, self.under = self.under, test
            self.follow(mine)
            self.under = test._replace(left=True) if _leaves(other) else under
            self.gone |= _leaves(mine)
        return False

    def define(self, node: Function | ast.ClassDef) -> None:
        """A function that only some ranks define is called by them alone; from where is not known."""
        if self.under and isinstance(node, Function):
            under, self.under = self.under, None
            self.follow(node.body)
            self.under = under

    def bind(self, target: ast.expr, value: tuple[_Called, ...]) -> None:
        """Names are not followed."""

    def value(self, node: ast.expr) -> tuple[_Called, ...]:
        """Note the collectives among the calls of an expression."""
        if isinstance(node, ast.Call) and not self.gone:
            call = _Called(node, self.statement.lineno, self.under)
            for name in self._collectives(node):
                self.env[name] = (*self.env.get(name, ()), call)
        if not isinstance(node, ast.Lambda):
            self.parts(node)
        return ()

    def _collectives(self, call: ast.Call) -> Sequence[str]:
        """The collectives that a call is, or leads to. Those of a group of its own are left out."""
        func, name = call.func, tail(call.func)
        if isinstance(func, ast.Name) and name in self.names.functions:
            return self.always.get(name, ())
        if isinstance(func, ast.Attribute) and is_accelerator(func.value):
            return (f"accelerator.{name}",) if name in _ACCELERATOR else ()
        if name not in _GROUP_AT or not self.names.origin(func).startswith("torch.distributed."):
            return ()
        return () if len(call.args) > _GROUP_AT[name] or "group" in keywords(call) else (name,)


def _leaves(statements: Sequence[ast.stmt]) -> bool:
    """Whether control surely leaves the function or this iteration. An exception ends the whole job."""
    return any(isinstance(statement, ast.Return | ast.Continue | ast.Break) for statement in statements)
