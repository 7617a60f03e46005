"""Find the largest batch, or the longest sequence, whose step still fits with everything that lowers its peak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ckpt_surgery.errors import DoesNotFitError, PlanningError, SurgeryError
from ckpt_surgery.planning.choices import PlanChoice
from ckpt_surgery.planning.metered_steps import applied_on_shapes
from ckpt_surgery.planning.planner import stacks_of, tiling_of
from ckpt_surgery.planning.target import ReleasedModel, positions_of
from ckpt_surgery.planning.training import TrainingSetup
from ckpt_surgery.text import size

_UNIT = 8
"""Sequence lengths are multiples of this many tokens."""
_MOST_PROBES = 20  # each meters a step


def largest_sizes(
    released: ReleasedModel,
    batch: int,
    memory: int,
    training: TrainingSetup,
    *,
    is_batch: bool,
    offload: bool,
    changes: bool,
) -> tuple[int, int]:
    """Return the batch and the tokens of the largest step of a model that fits into `memory` bytes.

    The batch is searched if `is_batch`, else the tokens; the other stays fixed. `offload` and `changes` are as in
    `plan`.

    Raises:
        DoesNotFitError: not even the smallest step fits.
        PlanningError: the model takes no text whose length can be chosen.
    """
    if not is_batch and not released.tokens:
        raise PlanningError(f"{type(released.model).__name__} takes no text whose length could be chosen")
    unit, start = (1, batch) if is_batch else (_UNIT, max(released.tokens // _UNIT, 1) * _UNIT)
    most = None if is_batch else positions_of(released.model)
    choice = _smallest(released, training, offload=offload, changes=changes)

    def peak(number: int) -> int:
        sized = released.resized(number if is_batch else batch, released.tokens if is_batch else number)
        return _peak(sized, choice, training)

    found = largest(peak, memory, start=start, unit=unit, most=most)
    if not found:
        what = "one sample" if is_batch else f"{_UNIT} tokens"
        raise DoesNotFitError(f"not even a step of {what} fits into {size(memory)}")
    return (found, released.tokens) if is_batch else (batch, found)


def largest(peak: Callable[[int], int], memory: int, *, start: int, unit: int, most: int | None) -> int:
    """Return the largest multiple of `unit`, at most `most`, whose peak fits into `memory`; 0 if none does.

    Peaks rise about evenly: the next guess extrapolates from the two nearest known peaks, or is the middle.
    """
    end = (most or 2**62) // unit * unit
    peaks: dict[int, int] = {}
    low, high, guess = 0, end + unit, min(max(start, unit), end)
    for probe in range(_MOST_PROBES):
        if low + unit >= high:
            break
        peaks[guess] = peak(guess)
        low, high = (guess, high) if peaks[guess] <= memory else (low, guess)
        nearest = sorted(peaks, key=lambda number: abs(peaks[number] - memory))[:2]
        guess = 2 * nearest[0]
        if len(nearest) == 2 and peaks[nearest[0]] != peaks[nearest[1]]:
            slope = (peaks[nearest[1]] - peaks[nearest[0]]) / (nearest[1] - nearest[0])
            guess = int(nearest[0] + (memory - peaks[nearest[0]]) / slope) // unit * unit
        if probe % 2 and high <= end:  # guesses may come nearer to a curve from one side only
            guess = (low + high) // 2 // unit * unit
        guess = min(max(guess, low + unit), high - unit)
    return low


def _smallest(released: ReleasedModel, training: TrainingSetup, *, offload: bool, changes: bool) -> PlanChoice:
    """Return the choice that lowers a model's peak the most: all blocks checkpointed, and each change that helps."""
    stacks = stacks_of(released.model)
    every = dict.fromkeys(sorted(name for names in stacks.values() for name in names), ())
    best = PlanChoice(stacks, every, offload=offload)
    if not changes:
        return best
    least = _peak(released, best, training)
    for change in filter(None, ({"fused_loss": True}, tiling_of(released.model, every))):
        changed = replace(best, **change)
        try:
            peak = _peak(released, changed, training)
        except (SurgeryError, PlanningError):  # it cannot be made to this model
            continue
        best, least = (changed, peak) if peak <= least else (best, least)
    return best


def _peak(released: ReleasedModel, choice: PlanChoice, training: TrainingSetup) -> int:
    with applied_on_shapes(choice, released.model):
        return released.explained(training).peak_bytes
