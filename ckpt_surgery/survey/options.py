"""The options of a survey: what is examined in each target, its time limit, and shards of the targets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ckpt_surgery.measure.results import Level, Mode
from ckpt_surgery.survey.target import SurveyTarget, TargetError

_LONGEST = 86400.0


@dataclass(frozen=True, slots=True)
class SurveyOptions:
    """What is examined in every target. `timeout` is in seconds a phase, `examination` names the class to use.

    `device` is where models run, as torch names it; empty for where they are built.
    """

    modes: tuple[Mode, ...]
    levels: str | tuple[Level, ...]
    timeout: float
    examination: str
    device: str = ""


def part_of(targets: Sequence[SurveyTarget], shard: tuple[int, int]) -> list[SurveyTarget]:
    """Return part `i` of `n` for the shard (i, n), counted from 1. Parts are disjoint, complete, equally long."""
    index, count = shard
    return list(targets[len(targets) * (index - 1) // count : len(targets) * index // count])


def parse_shard(text: str) -> tuple[int, int]:
    """Return the numbers of `i/n`. Raises TargetError unless `i` is from 1 to `n`."""
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text.strip())
    index, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= index <= count:
        raise TargetError(f"{text!r} is not a shard: write i/n with i from 1 to n, such as 2/4")
    return index, count


def checked_timeout(seconds: float) -> float:
    """Return `seconds`, if they can be a time limit. Raises TargetError unless they are from 0.1 to a day."""
    if not 0.1 <= seconds <= _LONGEST:
        raise TargetError(f"{seconds:g} is no time limit: give seconds from 0.1 to {_LONGEST:g}")
    return seconds
