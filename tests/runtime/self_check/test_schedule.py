"""When recomputes are checked: the first three steps, new shapes, and in turn; always, never, or every n-th step."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from ckpt_surgery.runtime.self_check.schedule import CheckSchedule, SelfCheckOption

pytestmark = [pytest.mark.torch]

SHORT, LONG = [torch.ones(2)], [torch.ones(3)]


def checked(schedule: CheckSchedule, steps: int, calls: int = 2) -> list[int]:
    """Return the steps in which a call was checked; each has several calls, and then their recomputes."""
    due = []
    for step in range(steps):
        answers = {schedule.due(SHORT) for _ in range(calls)}
        assert answers in ({None}, {"close" if step < 3 else "quick"})
        due += [] if answers == {None} else [step]
        for _ in range(calls):
            schedule.recomputed()
    return due


@pytest.mark.parametrize(
    ("when", "expected"), [("first", [0, 1, 2]), ("always", [*range(7)]), ("never", []), (3, [0, 3, 6])], ids=str
)
def test_the_steps_that_an_option_means(when: SelfCheckOption, expected: list[int]) -> None:
    schedule = CheckSchedule(when)
    schedule.restart(when, turn=8, turns=9)
    assert checked(schedule, 7) == expected


@pytest.mark.parametrize(("turn", "expected"), [(0, [0, 1, 2, 4, 8]), (1, [0, 1, 2, 5, 9]), (3, [0, 1, 2, 3, 7])])
def test_after_three_steps_blocks_take_turns(turn: int, expected: list[int]) -> None:
    schedule = CheckSchedule("first")
    schedule.restart("first", turn, turns=4)
    assert checked(schedule, 10) == expected


def test_a_new_shape_is_checked() -> None:
    schedule = CheckSchedule("first")
    schedule.restart("first", turn=8, turns=9)
    checked(schedule, 5)
    assert [schedule.due(given) for given in (SHORT, LONG, LONG, SHORT)] == [None, "quick", None, None]


def test_a_change_of_mode_starts_again() -> None:
    schedule = CheckSchedule("first")
    for _ in range(2):
        schedule.restart("first", turn=8, turns=9)
        assert checked(schedule, 5) == [0, 1, 2]
    schedule.restart("never")
    assert checked(schedule, 5) == []


def test_a_forward_without_a_backward_is_no_step() -> None:
    schedule = CheckSchedule(2)
    assert [schedule.due(SHORT) for _ in range(4)] == ["close"] * 4
