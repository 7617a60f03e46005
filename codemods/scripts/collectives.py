"""Find the collectives of a script that some ranks call and others do not.

Every function is followed twice: as a rank on which each test of ranks (or of a missing gradient) is true, and as one
on which it is false. A collective that only one of them calls is a finding; one that both call, in any branch, is not,
nor is one that only the other kind calls elsewhere in the file: there the ranks meet.
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
"""What a file calls torch.distributed, or what is in it: begins with a literal, which makes the search fast."""
_LONGEST = 80
"""Characters before a call that what it belongs to is looked for in."""
_KNOWN = {*dir(builtins), *sys.stdlib_module_names, "torch"}
"""Functions and packages in which no collective is called that the script does not name."""
_HARMLESS = words("info warning error debug append extend add update get keys values items")
"""Methods of loggers, lists, sets and dicts."""


class _Called(NamedTuple):
    """A call of a collective, the test of ranks that led there, if any did, and the loops around it.

    `conditional` tells that something else decides whether it runs; `doubtful` that it is a call of a function in
    which the collective is conditional, as on one of its parameters.
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
    """Tell whether a file calls collectives of an accelerator, or by a name it has for torch.distributed's."""
    if "distributed" not in text and "accelerator." not in text:
        return False
    named = {"distributed"}.union(*(re.findall(r"\w+", f"{name} {names}") for name, names in _NAMED.findall(text)))
    owners = (text[max(0, call.start() - _LONGEST) : call.start()] for call in _CALL.finditer(text))
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
    followed = called.keys() & tested  # elsewhere, what the two kinds of rank call is the same
    if not followed:
        return
    led_to = {name for scope, callees in called.items() if scope or scope in followed for name in callees}
    telling = {
        place.statement for place, call in names.calls if dotted(call.func) in called or _collective(names, call)
    }
    always: dict[str, Calls] = {}
    """The collectives that the script's own functions call on every rank."""

    def by_kind(scope: str, statements: Sequence[ast.stmt]) -> tuple[Calls, Calls]:
        first = _RankWalk(names, tests, telling, always, True).calls(statements)
        return first, _RankWalk(names, tests, telling, always, False).calls(statements) if scope in tested else first

    for _ in range(2):  # by the second time, what functions further down call is known
        for name, function in names.functions.items():
            if name in called.keys() & led_to:
                kinds = by_kind(name, function.body)
                counts = [{collective: len(calls) for collective, calls in kind.items()} for kind in kinds]
                always[name] = kinds[0] if counts[0] == counts[1] else {}
    alone: list[tuple[str, bool, str, _Called, RankTest]] = []
    for scope, statements in names.scopes():
        if scope in followed:
            first, other = by_kind(scope, statements)
            for is_first, more in ((True, _more(first, other)), (False, _more(other, first))):
                alone += [(name, is_first, scope, call, test) for name, call, test in more]
    by_spot: dict[Spot, Collective] = {}
    left: set[tuple[str, RankTest]] = set()
    # the collectives that one kind of rank calls alone; the other kind may call them elsewhere, as in `__exit__`
    halves = {(name, is_first, test.depends_on) for name, is_first, _, _, test in alone}
    for name, is_first, scope, call, test in alone:
        meets = (name, not is_first, test.depends_on) in halves
        if not meets and (scope, test) not in left:  # where the other ranks have left, the first collective is enough
            left |= {(scope, test)} if test.left else set()
            spot = Spot(span_of(call.node), call.first_line, scope)
            unless = tuple(sorted(text for text, truth in test.needs if not truth))
            by_spot[spot] = Collective(spot, dotted(call.node.func), test.text, test.line, test.depends_on, unless)
    yield from by_spot.values()


def _called(names: Names) -> Mapping[str, set[str]]:
    """Return what is called in each scope that calls a collective, or a function that does."""
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
    """Return the collective that a call is; empty for others, and for one of a group of its own."""
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

    Calls that may not run, or that the other kind may meet in code that is not in the file, are the first to be left
    over, and say nothing; those in a loop of their own come next, which run any number of times.
    """
    for name, calls in here.items():
        others = there.get(name, ())
        more = len(calls) - len(others)
        tested = [(call, call.test, call.doubtful or call.test.foreign) for call in calls if call.test]
        tested.sort(key=lambda entry: (entry[2], len(entry[0].loops)))
        for call, test, excused in tested[-more:] if more > 0 else ():
            served = any(other.test and not set(other.loops) <= set(call.loops) for other in others)
            if not excused and not served:
                yield name, call, test


class _RankWalk(Interpreter[tuple[_Called, ...]]):
    """A walk along one kind of rank; on the `first` kind each test of ranks is true.

    Instead of names, `env` holds collectives: the calls of each that have led to a place.
    """

    nothing = ()
    handlers = False

    def __init__(
        self, names: Names, tests: RankTests, telling: Set[ast.stmt], always: Mapping[str, Calls], first: bool
    ) -> None:
        super().__init__()
        self.names = names
        self.tests = tests
        self.telling = telling
        """The statements that call a collective, or a function of the script that may."""
        self.always = always
        self.first = first
        self.under: RankTest | None = None
        self.gone = False

    def calls(self, statements: Sequence[ast.stmt]) -> Calls:
        self.follow(statements)
        return self.env

    def follow(self, statements: Iterable[ast.stmt]) -> bool:
        """Follow a block. Ranks that left in it are gone up to its end; what has been called stays called."""
        under, gone = self.under, self.gone
        super().follow(statements)
        self.under, self.gone = under, gone
        return False

    def join(self, values: Sequence[tuple[_Called, ...]]) -> tuple[_Called, ...]:
        """Count a collective that both sides of a test call once."""
        return max(values, key=len)

    def side(self, node: ast.If, truth: bool) -> bool:
        """Follow the side that this kind of rank takes, or both where all ranks take the same."""
        test = self.tests.of(node.test)
        if test is None:
            return super().side(node, truth)
        if (test.first == self.first) == truth:
            mine, other = (node.body, node.orelse) if truth else (node.orelse, node.body)
            under, self.under = self.under, test._replace(foreign=self._runs_foreign(other))
            test = self.under
            self.follow(mine)
            self.under = test._replace(left=True) if _leaves(other) else under
            self.gone |= _leaves(mine)
        return False

    def _if(self, node: ast.If) -> bool:
        """Note that what follows a branch that left depends on its test."""
        super()._if(node)
        if self.tests.of(node.test) is None and _leaves(node.body) != _leaves(node.orelse):
            self.conditions = (*self.conditions, Condition(node.test, _leaves(node.orelse)))
        return False

    def define(self, node: Function | ast.ClassDef) -> None:
        """Follow a function that only some ranks define: they alone call it; from where is not known."""
        if self.under and isinstance(node, Function):
            under, self.under = self.under, None
            self.follow(node.body)
            self.under = under

    def bind(self, target: ast.expr, value: tuple[_Called, ...]) -> None:
        """Ignore names: they are not followed."""

    def value(self, node: ast.expr) -> tuple[_Called, ...]:
        if self.statement in self.telling:
            if isinstance(node, ast.Call) and not self.gone:
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
        self.gone |= test is not None and test.first != self.first

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
        """Tell whether a callee is known to hold no collective that this file does not show."""
        if isinstance(callee, ast.Attribute) and (callee.attr in _HARMLESS or is_accelerator(callee.value)):
            return True
        while isinstance(callee, ast.Attribute | ast.Call | ast.Subscript):
            callee = callee.func if isinstance(callee, ast.Call) else callee.value
        return not isinstance(callee, ast.Name) or self.names.origin(callee).partition(".")[0] in _KNOWN


def _leaves(statements: Sequence[ast.stmt]) -> bool:
    """Tell whether control surely leaves the function or this iteration. An exception ends the whole job."""
    return any(isinstance(statement, ast.Return | ast.Continue | ast.Break) for statement in statements)
