"""Which collectives of a script some ranks call and others do not.

Every function is walked twice: as a rank on which each test of ranks (or of a missing gradient) is true, and as one on
which it is false. A collective that only one of them calls is a finding; one that both call, in any branch, is not.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ckpt_surgery.codemods.facts.script_facts import Collective, Spot
from ckpt_surgery.codemods.facts.syntax import Span, dotted, span_of
from ckpt_surgery.codemods.scripts.names import Function, Names, is_accelerator, scopes, tail
from ckpt_surgery.codemods.scripts.ranks import RankTest, RankTests

_GROUP_AT = {
    "all_reduce": 2,
    "broadcast": 2,
    "barrier": 0,
    "monitored_barrier": 0,
    "all_gather": 2,
    "reduce": 3,
    "gather": 3,
    "scatter": 3,
    "reduce_scatter": 3,
    "all_to_all": 2,
    "all_to_all_single": 4,
    "all_gather_into_tensor": 2,
    "reduce_scatter_tensor": 3,
    "all_gather_object": 2,
    "broadcast_object_list": 2,
    "gather_object": 3,
    "scatter_object_list": 3,
}
"""The collectives of torch.distributed, and the position of each one's `group` argument."""
_ACCELERATOR = {"wait_for_everyone", "gather", "gather_for_metrics", "reduce", "pad_across_processes"}
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True, slots=True)
class _Called:
    """A collective that one kind of rank calls; `test` is the test that led there, if any did."""

    name: str
    node: ast.Call
    first_line: int
    test: RankTest | None


@dataclass(slots=True)
class _RankWalk:
    """One kind of rank, and the collectives it calls. On the `first` kind each test is true."""

    first: bool
    called: list[_Called] = field(default_factory=list)

    @property
    def names(self) -> Counter[str]:
        """How often each collective is called."""
        return Counter(call.name for call in self.called)

    def of(self, name: str) -> list[_Called]:
        """The calls of one collective."""
        return [call for call in self.called if call.name == name]


def collectives(names: Names) -> Iterator[Collective]:
    """The collectives of a script that only some ranks call."""
    reader = _CollectiveReader(names)
    for scope, body in scopes(names):
        yield from reader.compare(scope, body)


class _CollectiveReader:
    def __init__(self, names: Names) -> None:
        self.names = names
        self.tests = RankTests(names)
        self.helpers: dict[str, tuple[str, ...]] = {}
        """The collectives that the script's own functions call on every rank."""
        self.helpers = {name: self._always(function) for name, function in names.functions.items()}

    def _always(self, function: Function) -> tuple[str, ...]:
        first, other = self._walks(function.body)
        return tuple(call.name for call in first.called) if first.names == other.names else ()

    def _walks(self, statements: Sequence[ast.stmt]) -> list[_RankWalk]:
        walks = [_RankWalk(True), _RankWalk(False)]
        for walk in walks:
            self._block(walk, statements, None)
        return walks

    def compare(self, scope: str, statements: Sequence[ast.stmt]) -> Iterator[Collective]:
        """The collectives that only one of the two kinds of rank calls here, or calls more often."""
        first, other = self._walks(statements)
        by_span: dict[Span, Collective] = {}
        left: set[RankTest] = set()
        for here, there in ((first, other), (other, first)):
            for name, more in (here.names - there.names).items():
                for call in [call for call in here.of(name) if call.test][-more:]:
                    spot = Spot(span_of(call.node), call.first_line, scope)
                    test = call.test
                    if test is None or test in left:
                        continue  # where the other ranks have left, the first collective is enough
                    left |= {test} if test.left else set()
                    by_span[spot.span] = Collective(
                        spot, dotted(call.node.func), test.text, test.line, test.depends_on
                    )
        yield from by_span.values()

    def _block(self, walk: _RankWalk, statements: Sequence[ast.stmt], under: RankTest | None) -> None:
        """Walk the statements that this kind of rank reaches."""
        for statement in statements:
            if isinstance(statement, ast.If):
                self._expressions(walk, statement.test, statement.lineno, under)
                test = self.tests.of(statement.test)
                if test:
                    taken, other = statement.body, statement.orelse
                    if test.first != walk.first:
                        taken, other = other, taken
                    self._block(walk, taken, test)
                    if _leaves(taken):
                        return
                    under = test._replace(left=True) if _leaves(other) else under
                else:
                    self._either(walk, statement, under)
            else:
                self._statement(walk, statement, under)

    def _either(self, walk: _RankWalk, statement: ast.If, under: RankTest | None) -> None:
        """A test that is the same on all ranks: a collective that both sides call is called once."""
        sides = [_RankWalk(walk.first), _RankWalk(walk.first)]
        self._block(sides[0], statement.body, under)
        self._block(sides[1], statement.orelse, under)
        more = sides[1].names - sides[0].names
        walk.called += sides[0].called
        walk.called += [call for name, count in more.items() for call in sides[1].of(name)[-count:]]

    def _statement(self, walk: _RankWalk, statement: ast.stmt, under: RankTest | None) -> None:
        if isinstance(statement, _SCOPES):
            if under and isinstance(statement, Function):
                # A function that only some ranks define is called by them alone; from where is not known.
                self._block(walk, statement.body, None)
            return
        for name in ("test", "iter", "value", "items", "exc", "msg"):
            part = getattr(statement, name, None)
            for node in part if isinstance(part, list) else [part]:
                if node is not None:
                    self._expressions(walk, node, statement.lineno, under)
        for name in ("body", "orelse", "finalbody"):  # handlers of exceptions are left out
            self._block(walk, getattr(statement, name, ()), under)

    def _expressions(self, walk: _RankWalk, node: ast.AST, line: int, under: RankTest | None) -> None:
        waiting = [node]
        while waiting:
            inner = waiting.pop()
            if isinstance(inner, ast.Call):
                walk.called += [_Called(name, inner, line, under) for name in self._names(inner)]
            if not isinstance(inner, _SCOPES):
                waiting.extend(ast.iter_child_nodes(inner))

    def _names(self, call: ast.Call) -> tuple[str, ...]:
        """The collectives that a call is, or leads to. Those of a group of its own are left out."""
        func, name = call.func, tail(call.func)
        if isinstance(func, ast.Name) and name in self.names.functions:
            return self.helpers.get(name, ())
        if isinstance(func, ast.Attribute) and is_accelerator(func.value):
            return (f"accelerator.{name}",) if name in _ACCELERATOR else ()
        if name not in _GROUP_AT or not self.names.origin(func).startswith("torch.distributed."):
            return ()
        grouped = len(call.args) > _GROUP_AT[name] or any(keyword.arg == "group" for keyword in call.keywords)
        return () if grouped else (name,)


def _leaves(statements: Sequence[ast.stmt]) -> bool:
    """Whether control surely leaves the function or this iteration. An exception ends the whole job."""
    return any(isinstance(statement, ast.Return | ast.Continue | ast.Break) for statement in statements)
