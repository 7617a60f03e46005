"""The outcome of a case: a training with a surgery, compared with the same without."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from benchmarks.fuzz_cases.case import Case
from benchmarks.fuzz_cases.loops import FIRST_STEPS
from benchmarks.fuzz_cases.model import FuzzBlock
from benchmarks.fuzz_cases.run import Run, Treatment, checkpointed, operated, train
from benchmarks.fuzz_cases.snapshot import GRADIENT, differences
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

    `names_block` tells whether the message of a refusal names a block.
    """

    case: Case
    outcome: Outcome
    reason: str = ""
    detail: tuple[str, ...] = ()
    names_block: bool = True


def judge(case: Case, treatment: Treatment = operated) -> Result:
    """Train with and without a treatment, and compare. What fails is compared with torch's own checkpointing too."""
    reference = train(case)
    if reference.error is not None:
        return Result(case, Outcome.INVALID, type(reference.error).__name__, (str(reference.error),))
    noted = [leaf for note in reference.notes for leaf in note.leaves.values() if isinstance(leaf, Tensor)]
    if not all(bool(torch.isfinite(leaf).all()) for leaf in noted):
        return Result(case, Outcome.INVALID, "not finite")
    treated = train(case, treatment)
    result = _compared(case, treated, reference)
    right = (Outcome.EQUAL, Outcome.HARMLESS)
    if result.outcome in FAILURES and _compared(case, train(case), reference).outcome not in right:
        return Result(case, Outcome.INVALID, "differs from itself")
    torch_raises = result.outcome is Outcome.CRASHED and isinstance(treated.error, CheckpointError)
    if not torch_raises and result.outcome is not Outcome.REFUSED:
        return result
    own = _compared(case, train(case, checkpointed), reference)
    if own.outcome in right:
        return result if torch_raises else replace(result, outcome=Outcome.FALSE_ALARM)
    return replace(result, outcome=Outcome.TORCH_RAISES) if torch_raises else result


def _compared(case: Case, ours: Run, theirs: Run) -> Result:
    values, since = _wrong_values(case, ours, theirs)
    state, outside = [], []
    if ours.error is None:
        state = differences(ours.state, theirs.state, _tolerance(case))
        outside = differences(ours.outside, theirs.outside, _tolerance(case))
        if case.is_late:  # what begins late may be written twice until its turn, as limits.md says
            state, outside = [], [*state, *outside]
        gradients = [found for found in (*state, *outside) if found.partition(": ")[0].endswith(GRADIENT)]
        values += gradients
        state = [found for found in state if found not in gradients]
        outside = [found for found in outside if found not in gradients]

    def differing(outcome: Outcome, found: list[str]) -> Result:
        return Result(case, outcome, re.sub(r"\d+", "N", found[0].partition(": ")[0]), tuple(found[:5]))

    error = ours.error
    wrong_for = ours.steps - since  # steps after the first one in which something was wrong
    time = 0 if since < FIRST_STEPS else case.blocks  # until every block was looked at
    told = isinstance(error, (SurgeryError, CheckpointError)) and wrong_for < max(time, 1)
    warned = ours.warning is not None and since >= FIRST_STEPS
    if values and not (told or warned or (error is None and wrong_for < time)):
        return differing(Outcome.SILENT, values)
    if isinstance(error, SurgeryError) or (values and warned and error is None):
        message = str(error or ours.warning)
        return Result(case, Outcome.REFUSED, _grouped(message), (message,), FuzzBlock.__name__ in message)
    if values and error is None:
        return Result(case, Outcome.INVALID, "ended before every block was looked at")
    if error is not None:
        return Result(case, Outcome.CRASHED, f"{type(error).__name__}: {_grouped(str(error))}", (str(error),))
    if state:
        return differing(Outcome.STATE, state)
    return differing(Outcome.HARMLESS, outside) if outside else Result(case, Outcome.EQUAL)


def _wrong_values(case: Case, ours: Run, theirs: Run) -> tuple[list[str], int]:
    """Return where losses and gradients differ, and since which step; up to an error."""
    values: list[str] = []
    since = ours.steps
    for one, other in zip(ours.notes, theirs.notes, strict=False):
        if found := differences(one.leaves, other.leaves, _tolerance(case)):
            since = since if values else one.step
            values += [f"{one.label}{difference}" for difference in found]
    if ours.error is None and len(ours.notes) != len(theirs.notes):
        values.append(f"notes: {len(ours.notes)} instead of {len(theirs.notes)}")
    return values, since


def _tolerance(case: Case) -> float:
    return _CACHES if "caches" in case.kinds else 0.0


def _grouped(message: str) -> str:
    """Return a message without what differs from case to case."""
    line = re.sub(rf"{FuzzBlock.__name__} layers\.\d+", "BLOCK", " ".join(message.split()))
    return re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "N", line)[:140]
