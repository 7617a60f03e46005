"""When recomputes are checked: the first three steps and new shapes, always, never, or every n-th step."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from ckpt_surgery.runtime.self_check.schedule import CheckSchedule, SelfCheckOption

pytestmark = [pytest.mark.torch]

SHORT, LONG = [torch.ones(2)], [torch.ones(3)]


def checked(schedule: CheckSchedule, steps: int, calls: int = 2) -> list[int]:
    """The steps of which a call was checked; each has several calls, and then their recomputes."""
    due = []
    for step in range(steps):
        answers = {schedule.due(SHORT) for _ in range(calls)}
        assert len(answers) == 1
        due += [step] if answers == {True} else []
        for _ in range(calls):
            schedule.recomputed()
    return due


@pytest.mark.parametrize(
    ("when", "expected"), [("first", [0, 1, 2]), ("always", [*range(7)]), ("never", []), (3, [0, 3, 6])], ids=str
)
def test_the_steps_that_an_option_means(when: SelfCheckOption, expected: list[int]) -> None:
    assert checked(CheckSchedule(when), 7) == expected


def test_a_shape_is_checked_when_it_comes_for_the_first_time() -> None:
    schedule = CheckSchedule("first")
    checked(schedule, 5)
    assert [schedule.due(given) for given in (SHORT, LONG, LONG, SHORT)] == [False, True, False, False]


def test_a_change_of_mode_starts_again() -> None:
    schedule = CheckSchedule("first")
    assert checked(schedule, 5) == [0, 1, 2]
    schedule.restart("first")
    assert checked(schedule, 5) == [0, 1, 2]
    schedule.restart("never")
    assert checked(schedule, 5) == []


def test_a_forward_without_a_backward_is_no_step() -> None:
    schedule = CheckSchedule(2)
    assert [schedule.due(SHORT) for _ in range(4)] == [True] * 4
