"""What became of a case: a training with a surgery held against the same without."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointError

from benchmarks.fuzz_cases.case import Case
from benchmarks.fuzz_cases.model import Endless
from benchmarks.fuzz_cases.run import Run, Treatment, checkpointed, operated, train, untreated
from benchmarks.fuzz_cases.snapshot import GRADIENT, differences
from ckpt_surgery.errors import SurgeryError

_BLOCK = "FuzzBlock"
_IN_TORCH = "CheckpointFunction"
"""What torch's own errors about views that it returns name."""


class Outcome(StrEnum):
    """What became of a case. `INVALID` counts for nothing: the reference fails, or differs from itself.

    With `TORCH_RAISES` torch's own checkpointing of the same blocks ends with the same error of its own.
    """

    EQUAL = "equal"
    REFUSED = "refused"
    REFUSED_THOUGH_TORCH_IS_RIGHT = "refused though torch is right"
    SILENT = "silent"
    STATE = "state"
    CRASHED = "crashed"
    TORCH_RAISES = "torch raises"
    HANG = "hang"
    INVALID = "invalid"


FAILURES = frozenset({Outcome.SILENT, Outcome.STATE, Outcome.CRASHED, Outcome.HANG})
"""The outcomes that break the promise of `wrap_blocks`."""
REFUSALS = frozenset({Outcome.REFUSED, Outcome.REFUSED_THOUGH_TORCH_IS_RIGHT})

EXACT = 0.0
REENTRANT = 1e-9
"""Relative to the largest element, in float64: a backward inside a backward adds gradients up in another order."""
LOW_PRECISION = 2.0**-5
"""The same where something computes in bfloat16."""

_IN_LOW_PRECISION = frozenset({"AutocastInside", "AutocastAround", "LowPrecision"})
_IN_SINGLE_PRECISION = frozenset({"Complex", "ComplexOutput"})
_SINGLE_PRECISION = 1e-4


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one case. `detail` is what differs first, or the message of the error; `reason` groups those.

    For a refusal, `names_block` tells whether its message names a block, and `torch_gradients` whether torch's own
    checkpointing has the right gradients, whatever becomes of the state.
    """

    case: Case
    outcome: Outcome
    reason: str = ""
    detail: tuple[str, ...] = ()
    names_block: bool = True
    torch_gradients: bool = False


def judge(case: Case, treatment: Treatment = operated) -> Result:
    """Train with and without a treatment, and compare."""
    reference = train(case)
    if reference.error is not None:
        return Result(case, Outcome.INVALID, _kind(reference.error), (str(reference.error),))
    if not _finite(reference):
        return Result(case, Outcome.INVALID, "not finite")
    treated = train(case, treatment)
    result = _compared(case, treated, reference)
    if result.outcome in FAILURES:
        return _confirmed(result, reference, treated.error)
    if result.outcome is not Outcome.REFUSED:
        return result
    own = _compared(case, train(case, checkpointed), reference).outcome
    outcome = Outcome.REFUSED_THOUGH_TORCH_IS_RIGHT if own is Outcome.EQUAL else Outcome.REFUSED
    return replace(result, outcome=outcome, torch_gradients=own in (Outcome.EQUAL, Outcome.STATE))


def _confirmed(failure: Result, reference: Run, error: Exception | None) -> Result:
    """A failure that ended with `error`, unless the reference is at fault, or torch's own checkpointing fails so too.

    Weights that are written through `.data` after a forward are not missed by torch: its backward then reads what
    was written later. A reference that keeps copies for its backward shows that.
    """
    case = failure.case
    again = train(case, untreated)
    if again.error is not None or _differences(case, again, reference) != ([], []):
        return Result(case, Outcome.INVALID, "differs from itself")
    with saved_tensors_hooks(_copied, _itself):
        copied = train(case, untreated)
    if copied.error is None and _differences(case, copied, reference) != ([], []):
        return Result(case, Outcome.INVALID, "reads in its backward what was written after its forward")
    if case.mode == "reentrant" and _diverges(case, reference, failure.outcome):
        return Result(case, Outcome.INVALID, "differs from one that starts a rounding away")
    if failure.outcome is Outcome.CRASHED and (isinstance(error, CheckpointError) or _IN_TORCH in str(error)):
        torchs = _compared(case, train(case, checkpointed), reference)
        return replace(failure, outcome=Outcome.TORCH_RAISES) if torchs.reason == failure.reason else failure
    return failure


def _diverges(case: Case, reference: Run, outcome: Outcome) -> bool:
    """Whether a training blows up what reentrant mode may be off by: kernels without gradient may round otherwise."""
    if outcome not in (Outcome.SILENT, Outcome.STATE):
        return False
    nudged = train(case, _one_rounding_away)
    values, state = _differences(case, nudged, reference)
    return nudged.error is not None or bool(values if outcome is Outcome.SILENT else state)


def _one_rounding_away(model: nn.Module, case: Case) -> Callable[[], None]:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter * (1 + 2 * torch.finfo(parameter.dtype).eps))
    return untreated(model, case)


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def tolerance(case: Case) -> float:
    """How far apart values may be: nothing in non-reentrant mode, rounding in the other."""
    if case.mode == "non_reentrant":
        return EXACT
    if not _IN_LOW_PRECISION.isdisjoint(case.features):
        return LOW_PRECISION
    return _SINGLE_PRECISION if not _IN_SINGLE_PRECISION.isdisjoint(case.features) else REENTRANT


def _compared(case: Case, treated: Run, reference: Run) -> Result:
    values, state = _differences(case, treated, reference)
    error = treated.error
    if values:
        return Result(case, Outcome.SILENT, _path(values[0]), tuple(values[:5]))
    if isinstance(error, SurgeryError):
        message = str(error)
        return Result(case, Outcome.REFUSED, _grouped(message), (message,), _BLOCK in message)
    if isinstance(error, Endless):
        return Result(case, Outcome.HANG, str(error), (str(error),))
    if error is not None:
        return Result(case, Outcome.CRASHED, f"{_kind(error)}: {_grouped(str(error))}", (str(error),))
    if state:
        return Result(case, Outcome.STATE, _path(state[0]), tuple(state[:5]))
    return Result(case, Outcome.EQUAL)


def _differences(case: Case, ours: Run, theirs: Run) -> tuple[list[str], list[str]]:
    """Where losses and gradients differ, and where only the state in the end does.

    A training that an error ended is compared as far as it came.
    """
    close, forgiving = tolerance(case), case.mode == "reentrant"
    values: list[str] = []
    for (label, one), (_, other) in zip(ours.notes, theirs.notes, strict=False):
        values += [f"{label}{found}" for found in differences(one, other, close, zero_is_none=forgiving)]
    if ours.error is not None:
        return values, []
    if len(ours.notes) != len(theirs.notes):
        values.append(f"notes: {len(ours.notes)} instead of {len(theirs.notes)}")
    state = differences(ours.state, theirs.state, close, zero_is_none=forgiving)
    values += [found for found in state if found.partition(": ")[0].endswith(GRADIENT)]
    return values, [found for found in state if not found.partition(": ")[0].endswith(GRADIENT)]


def _finite(run: Run) -> bool:
    """Whether every number that a run noted is one: nothing can be told from the others."""
    values = (value for _, leaves in run.notes for value in leaves.values() if isinstance(value, Tensor))
    return all(bool(torch.isfinite(value).all()) for value in values)


def _kind(error: BaseException) -> str:
    return type(error).__name__


def _path(difference: str) -> str:
    return re.sub(r"\d+", "N", difference.partition(": ")[0])


def _grouped(message: str) -> str:
    """A message without what differs from case to case."""
    line = " ".join(message.split())
    line = re.sub(r"FuzzBlock layers\.\d+", "BLOCK", line)
    return re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "N", line)[:140]
