"""Options of a training fit together or are refused in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from ckpt_surgery.errors import PlanningError
from ckpt_surgery.planning.training import Optimizer, Sharding, TrainingSetup


def test_options_make_a_training() -> None:
    assert TrainingSetup.of("adamw", 1, None) == TrainingSetup(Optimizer.ADAMW)
    assert TrainingSetup.of("none", 8, "zero2") == TrainingSetup(Optimizer.NONE, 8, Sharding.ZERO_2)


@pytest.mark.parametrize(
    ("ranks", "sharding", "said"),
    [
        (8, None, "8 ranks share nothing by themselves: say what they shard: fsdp, zero1"),
        (1, "fsdp", "fsdp divides a model among ranks: give 2 ranks or more"),
        (0, None, "ranks is 0: give a whole number"),
        (True, None, "ranks is True"),
        (8, "zero4", "no sharding is called 'zero4': give one of fsdp"),
    ],
)
def test_options_that_do_not_fit_are_refused(ranks: Any, sharding: str | None, said: str) -> None:
    with pytest.raises(PlanningError, match=said):
        TrainingSetup.of("adamw", ranks, sharding)
