"""Find the collectives of a script that some ranks call and others do not.

Every function is followed twice: as rank 0, or a rank on which a tested gradient exists, and as any other rank. A
collective is reported if only one of these two kinds of rank calls it, in whatever branch, and the other kind does not
call it alone elsewhere in the file, where the ranks would meet.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple, TypeAlias

from ckpt_surgery.codemods.facts.evaluator import Condition
from ckpt_surgery.codemods.facts.interpreter import Function, Interpreter
from ckpt_surgery.codemods.facts.script_facts import Collective, Spot
from ckpt_surgery.codemods.facts.syntax import dotted, span_of, walk
from ckpt_surgery.codemods.scripts.names import Names, is_accelerator, keywords, tail, words
from ckpt_surgery.codemods.scripts.ranks import RankTest, RankTests, outcomes

_POSITIONS = {
    0: words("barrier monitored_barrier"),
    2: words(
        "all_reduce broadcast all_gather all_to_all all_gather_into_tensor all_gather_object broadcast_object_list"
    ),
    3: words("reduce gather scatter reduce_scatter reduce_scatter_tensor gather_object scatter_object_list"),
    4: words("all_to_all_single"),
}
_GROUP_AT = {name: position for position, names in _POSITIONS.items() for name in names}
"""The collectives of torch.distributed, and the position of each one's `group` argument."""
_ACCELERATOR = {"wait_for_everyone", "gather", "gather_for_metrics", "reduce", "pad_across_processes"}
_CALL = re.compile(rf"\.(?:{'|'.join(sorted(_GROUP_AT.keys() | _ACCELERATOR))})\(")
_NAMED = re.compile(r"distributed[\w.]*[ \t]+(?:as[ \t]+(\w+)|import[ \t]+(\([^)]*\)|.*))")
"""The names that a file imports torch.distributed or its parts as. It begins with a literal, to be fast."""
_MOST_BEFORE = 80
"""The object that a method belongs to is looked for in this many characters before the call."""
_KNOWN = {*dir(builtins), *sys.stdlib_module_names, "torch"}
"""Builtins and packages that call no collective unless the script names it."""
_HARMLESS = words("info warning error debug append extend add update get keys values items")
"""Methods of loggers, lists, sets and dicts: they call none."""


class _Called(NamedTuple):
    """A call of a collective, the test of ranks that led there, if any, and the loops around it.

    `conditional`: something else also decides whether it runs. `doubtful`: it is a call of a function in which the
    collective is conditional, for example on a parameter.
    """

    node: ast.Call
    first_line: int
    test: RankTest | None = None
    loops: tuple[ast.AST, ...] = ()
    conditional: bool = False
    doubtful: bool = False


Calls: TypeAlias = dict[str, tuple[_Called, ...]]
"""The calls of each collective."""


def may_call_collectives(text: str) -> bool:
    """Tell whether a file may call collectives of an accelerator or of torch.distributed, by any name."""
    if "distributed" not in text and "accelerator." not in text:
        return False
    named = {"distributed"}.union(*(re.findall(r"\w+", f"{name} {names}") for name, names in _NAMED.findall(text)))
    owners = (text[max(0, call.start() - _MOST_BEFORE) : call.start()] for call in _CALL.finditer(text))
    dotted_owners = (re.split(r"[^\w.]", owner)[-1].split(".") for owner in owners)
    if any(not named.isdisjoint(parts) or parts[-1].lower().endswith("accelerator") for parts in dotted_owners):
        return True
    return any(f"{name}(" in text for name in named & _GROUP_AT.keys())


def collectives(names: Names) -> Iterator[Collective]:
    """Yield the collectives of a script that only some ranks call."""
    called = _called(names)
    if not called:
        return
    tests = RankTests(names)
    tested = {
        place.scope
        for place in names.places
        if place.scope in called and isinstance(place.node, ast.If | ast.Assert) and tests.of(place.node.test)
    }
    followed = called.keys() & tested  # elsewhere, both kinds of rank call the same
    if not followed:
        return
    called_names = {name for scope, callees in called.items() if scope or scope in followed for name in callees}
    calling = {
        place.statement for place, call in names.calls if dotted(call.func) in called or _collective(names, call)
    }
    always: dict[str, Calls] = {}
    """The collectives that the script's own functions call on every rank."""

    def by_kind(scope: str, statements: Sequence[ast.stmt]) -> tuple[Calls, Calls]:
        rank_0 = _RankWalk(names, tests, calling, always, True).calls(statements)
        return rank_0, _RankWalk(names, tests, calling, always, False).calls(statements) if scope in tested else rank_0

    for _ in range(2):  # the second time, it is known what functions further down call
        for name, function in names.functions.items():
            if name in called.keys() & called_names:
                kinds = by_kind(name, function.body)
                counts = [{collective: len(calls) for collective, calls in kind.items()} for kind in kinds]
                always[name] = kinds[0] if counts[0] == counts[1] else {}
    alone: list[tuple[str, bool, str, _Called, RankTest]] = []
    for scope, statements in names.scopes():
        if scope in followed:
            rank_0, others = by_kind(scope, statements)
            for is_rank_0, more in ((True, _more(rank_0, others)), (False, _more(others, rank_0))):
                alone += [(name, is_rank_0, scope, call, test) for name, call, test in more]
    by_spot: dict[Spot, Collective] = {}
    settled: set[tuple[str, RankTest]] = set()
    # the collectives that only one kind of rank calls; the other kind may call them elsewhere, as in `__exit__`
    halves = {(name, is_rank_0, test.depends_on) for name, is_rank_0, _, _, test in alone}
    for name, is_rank_0, scope, call, test in alone:
        meets = (name, not is_rank_0, test.depends_on) in halves
        if not meets and (scope, test) not in settled:  # after the other ranks have left, one is enough
            settled |= {(scope, test)} if test.others_left else set()
            spot = Spot(span_of(call.node), call.first_line, scope)
            unless = tuple(sorted(text for text, truth in test.needs if not truth))
            by_spot[spot] = Collective(spot, dotted(call.node.func), test.text, test.line, test.depends_on, unless)
    yield from by_spot.values()


def _called(names: Names) -> Mapping[str, set[str]]:
    """Return the names called in each scope that calls a collective, or a function that does."""
    called: dict[str, set[str]] = {}
    scopes = {place.scope for place, call in names.calls if _collective(names, call)}
    for place, call in names.calls if scopes else ():
        called.setdefault(place.scope, set()).add(tail(call.func))
    more = scopes
    while more:
        function_names = {scope.rpartition(".")[2] for scope in more}
        more = {scope for scope, callees in called.items() if scope not in scopes and callees & function_names}
        scopes |= more
    return {scope: called[scope] for scope in scopes}


def _collective(names: Names, call: ast.Call) -> str:
    """Return the name of the collective that a call is; empty for other calls, and if it passes a group."""
    func, name = call.func, tail(call.func)
    if name not in _GROUP_AT and name not in _ACCELERATOR:
        return ""
    if isinstance(func, ast.Attribute) and is_accelerator(func.value):
        return f"accelerator.{name}" if name in _ACCELERATOR else ""
    if name not in _GROUP_AT or not names.origin(func).startswith("torch.distributed."):
        return ""
    return "" if len(call.args) > _GROUP_AT[name] or "group" in keywords(call) else name


def _more(here: Calls, there: Calls) -> Iterator[tuple[str, _Called, RankTest]]:
    """Yield the calls of one kind of rank that the other kind does not make, and the test that decides.

    Counts show how many calls are left over. Those that may not run, or that the other kind may make in code outside
    the file, are left over first and not yielded; then those in the most loops, which run any number of times.
    """
    for name, calls in here.items():
        others = there.get(name, ())
        more = len(calls) - len(others)
        tested = [(call, call.test, call.doubtful or call.test.foreign) for call in calls if call.test]
        tested.sort(key=lambda entry: (entry[2], len(entry[0].loops)))
        for call, test, excused in tested[-more:] if more > 0 else ():
            looped = any(other.test and not set(other.loops) <= set(call.loops) for other in others)
            if not excused and not looped:
                yield name, call, test


class _RankWalk(Interpreter[tuple[_Called, ...]]):
    """The walk of one kind of rank through a function: of rank 0 (`as_rank_0`), or of the others.

    Instead of the values of names, `env` holds the calls of each collective so far.
    """

    nothing = ()
    handlers = False

    def __init__(
        self, names: Names, tests: RankTests, calling: Set[ast.stmt], always: Mapping[str, Calls], as_rank_0: bool
    ) -> None:
        super().__init__()
        self.names = names
        self.tests = tests
        self.calling = calling
        """The statements that call a collective, or a function of the script that may."""
        self.always = always
        self.as_rank_0 = as_rank_0
        self.under: RankTest | None = None
        """The test of ranks that decides what is being followed."""
        self.has_left = False

    def calls(self, statements: Sequence[ast.stmt]) -> Calls:
        self.follow(statements)
        return self.env

    def follow(self, statements: Iterable[ast.stmt]) -> bool:
        """Follow a block. A rank that leaves it has left up to its end; the calls so far stay counted."""
        outer = self.under, self.has_left
        super().follow(statements)
        self.under, self.has_left = outer
        return False

    def join(self, values: Sequence[tuple[_Called, ...]]) -> tuple[_Called, ...]:
        """Count a collective that both sides of a test call once."""
        return max(values, key=len)

    def side(self, node: ast.If, truth: bool) -> bool:
        """Follow the side that this kind of rank takes, or both sides of a test that is not one of ranks."""
        test = self.tests.of(node.test)
        if test is None:
            return super().side(node, truth)
        if (test.on_rank_0 == self.as_rank_0) == truth:
            mine, other = (node.body, node.orelse) if truth else (node.orelse, node.body)
            under, self.under = self.under, test._replace(foreign=self._runs_foreign(other))
            test = self.under
            self.follow(mine)
            self.under = test._replace(others_left=True) if _leaves(other) else under
            self.has_left |= _leaves(mine)
        return False

    def _if(self, node: ast.If) -> bool:
        """Note that what follows a branch that left depends on its test."""
        super()._if(node)
        if self.tests.of(node.test) is None and _leaves(node.body) != _leaves(node.orelse):
            self.conditions = (*self.conditions, Condition(node.test, _leaves(node.orelse)))
        return False

    def define(self, node: Function | ast.ClassDef) -> None:
        """Follow a function that only some ranks define: only they call it, wherever that is."""
        if self.under and isinstance(node, Function):
            under, self.under = self.under, None
            self.follow(node.body)
            self.under = under

    def bind(self, target: ast.expr, value: tuple[_Called, ...]) -> None:
        """Ignore names: they are not followed."""

    def value(self, node: ast.expr) -> tuple[_Called, ...]:
        if self.statement in self.calling:
            if isinstance(node, ast.Call) and not self.has_left:
                self._note(node)
            if not isinstance(node, ast.Lambda):
                self.parts(node)
        return ()

    def _note(self, call: ast.Call) -> None:
        name = _collective(self.names, call)
        collectives = [(name, _Called(call, call.lineno))] if name else []
        if isinstance(call.func, ast.Name) and call.func.id in self.names.functions:
            inside = self.always.get(call.func.id, {})
            collectives = [(name, inner) for name, calls in inside.items() for inner in calls]
        alike = False
        if collectives and self.under and self.under.needs:  # other parts of the test may decide it alike on all ranks
            held = {outcome for test, truth in self.conditions for outcome in outcomes(test, truth)}
            alike = any((text, not truth) in held for text, truth in self.under.needs)
        if collectives and not alike:
            conditional = not all(self.tests.ask_for_ranks(test) for test, _ in self.conditions)
            for name, inner in collectives:
                loops, doubtful = (*self.loops, *inner.loops), inner.conditional or inner.doubtful
                called = _Called(call, self.statement.lineno, self.under, loops, conditional, doubtful)
                self.env[name] = (*self.env.get(name, ()), called)

    def _other(self, node: ast.stmt) -> None:
        """Note an assertion about the rank: it ends the job on the ranks where it fails."""
        super()._other(node)
        test = self.tests.of(node.test) if isinstance(node, ast.Assert) else None
        self.has_left |= test is not None and test.on_rank_0 != self.as_rank_0

    def _runs_foreign(self, statements: Iterable[ast.stmt]) -> bool:
        """Tell whether statements may lead to code outside this file that holds collectives."""
        waiting: list[ast.AST] = [*statements]
        for statement in waiting:  # grows while it is read
            for call in (node for node in walk(statement) if isinstance(node, ast.Call)):
                if function := self.names.functions.get(dotted(call.func)):
                    waiting += [function] if function not in waiting else []
                elif not self._is_harmless(call.func):
                    return True
        return False

    def _is_harmless(self, callee: ast.expr) -> bool:
        """Tell whether a callee surely calls no collective that this file does not show."""
        if isinstance(callee, ast.Attribute) and (callee.attr in _HARMLESS or is_accelerator(callee.value)):
            return True
        while isinstance(callee, ast.Attribute | ast.Call | ast.Subscript):
            callee = callee.func if isinstance(callee, ast.Call) else callee.value
        return not isinstance(callee, ast.Name) or self.names.origin(callee).partition(".")[0] in _KNOWN


def _leaves(statements: Sequence[ast.stmt]) -> bool:
    """Tell whether control surely leaves the function or iteration; an exception ends the whole job."""
    return any(isinstance(statement, ast.Return | ast.Continue | ast.Break) for statement in statements)
