"""The solver finds what trying everything finds."""

from __future__ import annotations

import random
from itertools import product

import pytest

from ckpt_surgery.planning.solver import Alternative, Solution, front, unbeaten


def stacks_of(generator: random.Random) -> list[list[Alternative]]:
    return [
        [
            Alternative(number, generator.randint(0, 30), generator.choice([0.0, 1.0, 2.5, float(number)]))
            for number in range(generator.randint(1, 5))
        ]
        for _ in range(generator.randint(1, 4))
    ]


def by_trying(stacks: list[list[Alternative]], budget: int) -> float | None:
    """The least time of all combinations that keep at most so much."""
    times = [sum(one.seconds for one in way) for way in product(*stacks) if sum(one.kept for one in way) <= budget]
    return min(times, default=None)


@pytest.mark.parametrize("start", range(0, 500, 100))
def test_the_front_holds_the_fastest_way_for_every_budget(start: int) -> None:
    for seed in range(start, start + 100):
        check_front(stacks_of(random.Random(seed)))


def check_front(stacks: list[list[Alternative]]) -> None:
    solutions = front(stacks)
    for budget in range(0, 130, 7):
        fitting = [solution.seconds for solution in solutions if solution.kept <= budget]
        assert min(fitting, default=None) == by_trying(stacks, budget)
    for solution in solutions:
        ways = zip(solution.checkpointed, stacks, strict=True)
        chosen = [next(one for one in stack if one.checkpointed == number) for number, stack in ways]
        assert (sum(one.kept for one in chosen), sum(one.seconds for one in chosen)) == (
            solution.kept,
            solution.seconds,
        )


def test_what_is_beaten_goes() -> None:
    ways = [Solution((0,), 10, 0.0), Solution((1,), 10, 1.0), Solution((2,), 4, 2.0), Solution((3,), 5, 3.0)]
    assert unbeaten(ways, lambda way: (way.seconds, way.kept)) == [ways[0], ways[2]]
