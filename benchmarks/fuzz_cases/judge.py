"""The outcome of a case: a training with a surgery, compared with the same without."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointError

from benchmarks.fuzz_cases.case import KIND_OF, Case
from benchmarks.fuzz_cases.model import Endless, FuzzBlock
from benchmarks.fuzz_cases.run import Run, Treatment, checkpointed, operated, train, untreated
from benchmarks.fuzz_cases.snapshot import GRADIENT, differences
from benchmarks.fuzz_cases.training import FIRST_STEPS
from ckpt_surgery.errors import SurgeryError

_CACHES = 1e-5
"""How far apart values may be where a cache may be left out: gradients are then added up in another order."""


class Outcome(StrEnum):
    """The outcome of a case.

    `SILENT`: a loss or gradient is wrong, and no error has told so in the first steps, or later, where a warning does
    too, until every block was looked at once. `STATE`: what a recompute has to leave alone is not as without one.
    `HARMLESS`: what it may write twice is written twice, and no gradient is another. `FALSE_ALARM`: refused though
    torch's own checkpointing is right. `TORCH_RAISES`: torch itself finds that a recompute saves other tensors, and
    its own checkpointing is not right either. `INVALID` counts for nothing: the reference fails or differs from
    itself, or the training ended before every block was looked at.
    """

    EQUAL = "equal"
    REFUSED = "refused"
    FALSE_ALARM = "false alarm"
    HARMLESS = "harmless"
    SILENT = "silent"
    STATE = "state"
    CRASHED = "crashed"
    HANG = "hang"
    TORCH_RAISES = "torch raises"
    INVALID = "invalid"


FAILURES = frozenset({Outcome.SILENT, Outcome.STATE, Outcome.CRASHED, Outcome.HANG})
"""The outcomes that break the promise of `wrap_blocks`."""
REFUSALS = frozenset({Outcome.REFUSED, Outcome.FALSE_ALARM})


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one case. `detail` is what differs first, or the message of the error; `reason` groups those.

    For a refusal, `names_block` tells whether its message names a block, and `told_after` in how many steps it came,
    where gradients were wrong: 1 is at once.
    """

    case: Case
    outcome: Outcome
    reason: str = ""
    detail: tuple[str, ...] = ()
    names_block: bool = True
    told_after: int = 1


@dataclass(frozen=True, slots=True)
class _Differences:
    """The differing losses and gradients, the first such step, and differences in the final state alone."""

    values: list[str]
    since: int
    state: list[str]
    outside: list[str]


def judge(case: Case, treatment: Treatment = operated) -> Result:
    """Train with and without a treatment, and compare."""
    reference = train(case)
    if reference.error is not None:
        return Result(case, Outcome.INVALID, type(reference.error).__name__, (str(reference.error),))
    if not _finite(reference):
        return Result(case, Outcome.INVALID, "not finite")
    treated = train(case, treatment)
    result = _compared(case, treated, reference)
    if result.outcome in FAILURES:
        return _confirmed(result, reference, treated.error)
    if result.outcome is not Outcome.REFUSED:
        return result
    return replace(result, outcome=Outcome.FALSE_ALARM) if _torch_is_right(case, reference) else result


def _torch_is_right(case: Case, reference: Run) -> bool:
    """Tell whether torch's own checkpointing of the same blocks trains as the reference does."""
    return _compared(case, train(case, checkpointed), reference).outcome in (Outcome.EQUAL, Outcome.HARMLESS)


def _confirmed(failure: Result, reference: Run, error: Exception | None) -> Result:
    """Confirm a failure that ended with `error`, unless the reference or torch's own checkpointing is at fault.

    Weights that are written through `.data` after a forward are not missed by torch: its backward then reads what
    was written later. A reference that keeps copies for its backward shows that.
    """
    case = failure.case
    if not _repeats(case, reference):
        return Result(case, Outcome.INVALID, "differs from itself")
    with saved_tensors_hooks(_copied, _itself):
        if not _repeats(case, reference, may_fail=True):
            return Result(case, Outcome.INVALID, "reads in its backward what was written after its forward")
    if failure.outcome is Outcome.CRASHED and isinstance(error, CheckpointError):
        return failure if _torch_is_right(case, reference) else replace(failure, outcome=Outcome.TORCH_RAISES)
    return failure


def _repeats(case: Case, reference: Run, *, may_fail: bool = False) -> bool:
    """Tell whether the reference gives the same again."""
    again = train(case, untreated)
    if again.error is not None:
        return may_fail
    found = _differences(case, again, reference)
    return not (found.values or found.state)


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _compared(case: Case, treated: Run, reference: Run) -> Result:
    found = _differences(case, treated, reference)
    error = treated.error
    wrong_for = treated.steps - found.since  # steps after the first one in which something was wrong
    time = 0 if found.since < FIRST_STEPS else case.blocks  # until every block was looked at
    told = isinstance(error, (SurgeryError, CheckpointError)) and wrong_for < max(time, 1)
    warned = treated.warning is not None and found.since >= FIRST_STEPS
    if found.values and not (told or warned or (error is None and wrong_for < time)):
        return Result(case, Outcome.SILENT, _path(found.values[0]), tuple(found.values[:5]))
    if isinstance(error, SurgeryError) or (found.values and warned and error is None):
        message, told_after = str(error or treated.warning), 1 + wrong_for if found.values else 1
        return Result(case, Outcome.REFUSED, _grouped(message), (message,), FuzzBlock.__name__ in message, told_after)
    if found.values and error is None:
        return Result(case, Outcome.INVALID, "ended before every block was looked at")
    if isinstance(error, Endless):
        return Result(case, Outcome.HANG, str(error), (str(error),))
    if error is not None:
        reason = f"{type(error).__name__}: {_grouped(str(error))}"
        return Result(case, Outcome.CRASHED, reason, (str(error),))
    if found.state:
        return Result(case, Outcome.STATE, _path(found.state[0]), tuple(found.state[:5]))
    if found.outside:
        return Result(case, Outcome.HARMLESS, _path(found.outside[0]), tuple(found.outside[:5]))
    return Result(case, Outcome.EQUAL)


def _differences(case: Case, ours: Run, theirs: Run) -> _Differences:
    """Compare two trainings; one that an error ended is compared as far as it came."""
    tolerance = _CACHES if "caches" in case.kinds else 0.0
    values: list[str] = []
    since = ours.steps
    for one, other in zip(ours.notes, theirs.notes, strict=False):
        if found := differences(one.leaves, other.leaves, tolerance):
            since = since if values else one.step
            values += [f"{one.label}{difference}" for difference in found]
    if ours.error is not None:
        return _Differences(values, since, [], [])
    if len(ours.notes) != len(theirs.notes):
        values.append(f"notes: {len(ours.notes)} instead of {len(theirs.notes)}")
    state = differences(ours.state, theirs.state, tolerance)
    outside = differences(ours.outside, theirs.outside, tolerance)
    if KIND_OF[case.scenario] == "late":  # what begins late may be written twice until its turn, as limits.md says
        state, outside = [], [*state, *outside]
    gradients = [found for found in (*state, *outside) if _is_gradient(found)]
    return _Differences(
        values + gradients,
        since if values else 0,
        [found for found in state if found not in gradients],
        [found for found in outside if found not in gradients],
    )


def _is_gradient(difference: str) -> bool:
    return difference.partition(": ")[0].endswith(GRADIENT)


def _finite(run: Run) -> bool:
    """Tell whether every number that a run noted is finite: others cannot be told apart."""
    values = (value for note in run.notes for value in note.leaves.values() if isinstance(value, Tensor))
    return all(bool(torch.isfinite(value).all()) for value in values)


def _path(difference: str) -> str:
    return re.sub(r"\d+", "N", difference.partition(": ")[0])


def _grouped(message: str) -> str:
    """Return a message without what differs from case to case."""
    line = " ".join(message.split())
    line = re.sub(rf"{FuzzBlock.__name__} layers\.\d+", "BLOCK", line)
    return re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "N", line)[:140]


def minimised(result: Result, run: Callable[[Case], Result] = judge) -> Result:
    """Drop features, options and blocks one at a time while the outcome stays, until nothing can be dropped.

    A crash has to keep the type of its error.
    """
    smallest = result
    while simpler := next((r for r in map(run, smallest.case.simpler()) if _alike(r, result)), None):
        smallest = simpler
    return smallest


def _alike(one: Result, other: Result) -> bool:
    if one.outcome is not other.outcome:
        return False
    return one.outcome is not Outcome.CRASHED or one.reason.partition(":")[0] == other.reason.partition(":")[0]
