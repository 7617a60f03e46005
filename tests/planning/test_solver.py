"""The solver finds the same as trying everything, for every budget, and a wrong solver is caught."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise, product

import pytest

from ckpt_surgery.planning import solver
from ckpt_surgery.planning.solver import Alternative, Solution, front, peak_of, unbeaten

STACKS = 500
Solver = Callable[..., list[Solution]]


class Model:
    """A small model: the choices of its blocks, some of one kind, and the bytes outside of blocks."""

    def __init__(self, seed: int) -> None:
        generator = random.Random(seed)
        kinds = [
            [
                Alternative(generator.randint(0, 12), generator.randint(0, 30), generator.randint(0, 6) / 2)
                for _ in range(generator.randint(1, 4))
            ]
            for _ in range(generator.randint(1, 3))
        ]
        self.blocks = [generator.choice(kinds) for _ in range(generator.randint(1, 6))]
        self.edges, self.loss = generator.randint(0, 30), generator.randint(0, 30)

    def by_trying(self) -> list[tuple[float, int]]:
        """Try all that the blocks can do; return seconds and peak of whatever no other beats."""
        tried = set()
        for taken in product(*self.blocks):
            before, alive = 0, [self.edges]
            for each in taken:
                alive.append(before + each.own)
                before += each.kept
            tried.add((sum(each.seconds for each in taken), max(*alive, before + self.loss)))
        return sorted(way for way in tried if not any(_beats(other, way) for other in tried))


def _beats(one: tuple[float, int], other: tuple[float, int]) -> bool:
    return one != other and one[0] <= other[0] and one[1] <= other[1]


def faults(model: Model, solve: Solver = front) -> list[str]:
    """Describe the faults of the solutions for a model."""
    found = solve(model.blocks, edges=model.edges, loss=model.loss)
    tried = model.by_trying()
    wrong = [] if [(each.seconds, each.peak) for each in found] == tried else ["another front"]
    for budget in {peak + off for _, peak in tried for off in (-1, 0, 1)}:
        best = min((seconds for seconds, peak in tried if peak <= budget), default=None)
        if min((each.seconds for each in found if each.peak <= budget), default=None) != best:
            wrong.append(f"another choice within {budget}")
    for each in found:
        taken = [block[at] for block, at in zip(model.blocks, each.taken, strict=True)]
        costs = sum(one.kept for one in taken), sum(one.seconds for one in taken)
        if (*costs, peak_of(taken, edges=model.edges, loss=model.loss)) != (each.kept, each.seconds, each.peak):
            wrong.append("other costs than its blocks have")
    return wrong


def test_the_front_is_the_true_one_and_the_best_is_found_for_every_budget() -> None:
    assert {seed: wrong for seed in range(STACKS) if (wrong := faults(Model(seed)))} == {}


def sorted_of(beginnings: object) -> list[solver._Beginning]:
    return sorted(beginnings, key=lambda each: (each.seconds, each.kept, each.peak))  # type: ignore[call-overload,no-any-return]


def fastest_two(beginnings: object) -> object:
    """Keep at most two beginnings."""
    return sorted_of(beginnings)[:2]


def without_peaks(beginnings: object) -> object:
    """Keep what no other beats in time and bytes alone."""
    return unbeaten(sorted_of(beginnings), lambda each: (each.seconds, each.kept))


@pytest.mark.parametrize("broken", [fastest_two, without_peaks])
def test_a_solver_that_drops_what_it_must_keep_is_caught(
    broken: Callable[[object], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solver, "_best", broken)
    assert any(faults(Model(seed)) for seed in range(50))


def test_many_blocks_take_a_moment() -> None:
    generator = random.Random(0)
    kept = [10**8, 7 * 10**7, 5 * 10**7, 3 * 10**7 + 17, 2 * 10**7 + 1, 10**6]
    ways = [Alternative(held, 11 * 10**7, 0.1 * place**1.5) for place, held in enumerate(kept)]
    blocks = [ways if generator.random() < 0.9 else ways[:3] for _ in range(126)]
    found = front(blocks, edges=0, loss=10**8)
    assert len(found) > 126
    assert all(one.seconds < other.seconds and one.peak > other.peak for one, other in pairwise(found))
