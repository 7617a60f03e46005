"""Recognise tests that differ between ranks: of the rank itself, or of whether a parameter has a gradient."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from ckpt_surgery.codemods.facts.script_facts import RankDependence
from ckpt_surgery.codemods.facts.syntax import dotted, walk
from ckpt_surgery.codemods.scripts.names import Names, tail, words

_RANKS = words(
    """
    rank local_rank global_rank world_rank ddp_rank ddp_local_rank process_index local_process_index
    get_rank get_local_rank get_data_parallel_rank RANK LOCAL_RANK
    """
)
_MAIN = words(
    """
    is_main_process is_local_main_process is_main is_master is_master_process master_process main_process
    is_global_zero is_rank_zero is_rank_0 is_rank0 is_world_process_zero is_local_process_zero
    """
)
RANKS = _RANKS | _MAIN
"""In a file without these names, only tests of a gradient differ between ranks."""
_SEVERAL = re.compile(r"world_size|multi_?gpu|distributed|ddp|num_processes|n_gpu|is_initialized|is_parallel", re.I)
_DISTRIBUTED = "torch.distributed."
_Answer: TypeAlias = Callable[[ast.expr], bool | None]
_TRUE_ON_0 = (ast.Eq, ast.Lt, ast.LtE, ast.In, ast.Is)
"""Comparisons of a rank that are true on rank 0: `rank == 0`, `rank < 1`."""
Outcome: TypeAlias = tuple[str, bool]
"""The text of a test, and whether it is true."""


class RankTest(NamedTuple):
    """A test that differs between ranks: its text and line, and why it differs.

    `on_rank_0` is its outcome on rank 0, or on a rank where the parameter has a gradient. `needs` are the outcomes of
    its other parts for which ranks differ. `others_left`: the other kind of rank leaves under it, so that it decides
    on what follows. `foreign`: the other kind runs code that this file does not show, maybe with the same collective.
    """

    text: str
    line: int
    depends_on: RankDependence
    on_rank_0: bool
    needs: frozenset[Outcome] = frozenset()
    others_left: bool = False
    foreign: bool = False


class RankTests:
    """Recognises such tests in a file, also by the names that it gives to ranks and tests."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.ranks: set[str] = set()
        self.answers: dict[str, bool] = {}
        self._tests: dict[ast.expr, RankTest | None] = {}
        targets = [place.node.target for place in names.places if isinstance(place.node, ast.For)]
        self.looped = {node.id for target in targets for node in walk(target) if isinstance(node, ast.Name)}
        for name, assigned in names.assigned.items():
            plain = ((value, value.operand if isinstance(value, ast.UnaryOp) else value) for _, value in assigned)
            values = [value for value, number in plain if not isinstance(number, ast.Constant)]
            if values and all(map(self._is_rank, values)):
                self.ranks.add(name)
            answers = {_answer(value, self._on_rank_0) for value in values}
            if len(answers) == 1 and (answer := answers.pop()) is not None:
                self.answers[name] = answer

    def of(self, test: ast.expr) -> RankTest | None:
        """Return a test as one of ranks; None if it is the same on all ranks, or nothing shows that it differs."""
        if test not in self._tests:
            self._tests[test] = self._read(test)
        return self._tests[test]

    def _read(self, test: ast.expr) -> RankTest | None:
        kinds: dict[RankDependence, _Answer] = {"rank": self._on_rank_0, "gradient": self._with_gradient}
        for dependence, simple in kinds.items():
            if (answer := _answer(test, simple)) is not None:
                needs = frozenset(_needs(test, simple))
                return RankTest(ast.unparse(test), test.lineno, dependence, answer, needs)
        return None

    def ask_for_ranks(self, test: ast.expr) -> bool:
        """Tell whether every part of a test asks which rank this is, or whether there are several processes."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.ask_for_ranks(operand)
            case ast.BoolOp(values=values):
                return all(map(self.ask_for_ranks, values))
        parts = [node for node in walk(test) if isinstance(node, ast.expr)]
        return _SEVERAL.search(ast.unparse(test)) is not None or any(
            self._is_rank(part)
            or self._on_rank_0(part) is not None
            or self.names.origin(part).startswith(_DISTRIBUTED)
            for part in parts
        )

    def _on_rank_0(self, test: ast.expr) -> bool | None:
        """Tell whether a simple test is true on rank 0 only (True), on others only (False), or neither (None)."""
        match test:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                for side, other in ((left, right), (right, left)):
                    if self._is_rank(side):
                        text = ast.unparse(other)
                        # `rank != -1`, `rank is not None`, `rank >= 0` ask whether there are several processes
                        several = text in ("-1", "None") or (text == "0" and isinstance(op, ast.GtE | ast.Lt))
                        # and in a loop over ranks each gets its turn
                        return None if several or dotted(other) in self.looped else isinstance(op, _TRUE_ON_0)
                return None
            case ast.Call(func=func) if tail(func) in _MAIN:
                return True
            case ast.Name() | ast.Attribute():
                if tail(test) in _MAIN or dotted(test) in self.answers:
                    return self.answers.get(dotted(test), True)
        return False if self._is_rank(test) else None

    def _with_gradient(self, test: ast.expr) -> bool | None:
        """Tell `p.grad is not None` (True) from the opposite (False), for the `p` of a loop over parameters."""
        match test:
            case ast.Compare(
                left=ast.Attribute(value=ast.Name(id=name), attr="grad"),
                ops=[ast.Is() | ast.IsNot() as op],
                comparators=[ast.Constant(value=None)],
            ) if name in self.looped:
                return isinstance(op, ast.IsNot)
        return None

    def _is_rank(self, node: ast.expr) -> bool:
        match node:
            case ast.Name() | ast.Attribute():
                return tail(node) in _RANKS or dotted(node) in self.ranks
            case ast.Call(func=func, args=args, keywords=keywords):
                if tail(func) == "int" and args:
                    return self._is_rank(args[0])
                if tail(func) in ("get", "getenv") and args:
                    return isinstance(args[0], ast.Constant) and args[0].value in _RANKS
                return tail(func) in _RANKS and not args and not keywords
            case ast.Subscript(value=value, slice=ast.Constant(value=key)):
                return tail(value) == "environ" and key in _RANKS
            case ast.BinOp(left=left):
                return self._is_rank(left)
            case ast.IfExp(body=body, orelse=orelse):
                return self._is_rank(body) or self._is_rank(orelse)
        return False


@lru_cache(maxsize=256)
def asks_for_several(test: ast.expr) -> bool | None:
    """Tell whether a test is true with several processes only (True), with one only (False), or neither (None)."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            answer = asks_for_several(operand)
            return None if answer is None else not answer
        case ast.Compare(left=left, ops=[op], comparators=[ast.Constant()]) if _SEVERAL.search(ast.unparse(left)):
            return isinstance(op, ast.Gt | ast.GtE | ast.NotEq | ast.IsNot)
        case ast.Name() | ast.Attribute() | ast.Call():
            name = tail(test.func if isinstance(test, ast.Call) else test)
            return True if _SEVERAL.search(name) else None
    return None


def _answer(test: ast.expr, simple: _Answer) -> bool | None:
    """Return the answer to a test that is made of simple ones: the first of them that has an answer decides."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            answer = _answer(operand, simple)
            return None if answer is None else not answer
        case ast.BoolOp(values=values):
            return next((answer for value in values if (answer := _answer(value, simple)) is not None), None)
    return simple(test)


def outcomes(test: ast.expr, truth: bool) -> Iterator[Outcome]:
    """Yield the outcomes of simple tests that a test needs to be true, or to be false."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from outcomes(operand, not truth)
        case ast.BoolOp(op=op, values=values):
            if isinstance(op, ast.And) == truth:
                for value in values:
                    yield from outcomes(value, truth)
        case _:
            yield ast.unparse(test), truth


def _needs(test: ast.expr, simple: _Answer) -> Iterator[Outcome]:
    """Yield the outcomes that the other parts of a test of ranks need for it to differ between ranks."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _needs(operand, simple)
        case ast.BoolOp(op=op, values=values):
            for value in values:
                if _answer(value, simple) is None:
                    yield from outcomes(value, isinstance(op, ast.And))
                else:
                    yield from _needs(value, simple)
