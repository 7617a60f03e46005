"""One case, trained with a surgery and without, and what came of it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.fuzz.case import Case
from benchmarks.fuzz.loops import LOOPS, Note, Training, gradients_of
from benchmarks.fuzz.model import FuzzBlock
from ckpt_surgery import SurgeryError, wrap_blocks

Treatment = Callable[[nn.Module, Case], Callable[[], None]]
"""Changes a model before its training; returns what takes that back."""
_CACHES = 1e-5
"""How far apart values may be where a cache may be left out: gradients are then added up in another order."""


class Outcome(StrEnum):
    """The outcome of a case.

    `REFUSED`: a SurgeryError names the block, before a gradient is wrong. `SILENT`: a loss or gradient is wrong, and
    no error told so in that step. `STATE`: weights, buffers, numbers on modules or generators are other ones in the
    end. `FAILED`: any other error. `INVALID` counts for nothing: the training fails without checkpointing too.
    """

    EQUAL = "equal"
    REFUSED = "refused"
    SILENT = "silent"
    STATE = "state"
    FAILED = "failed"
    INVALID = "invalid"


FAILURES = (Outcome.SILENT, Outcome.STATE, Outcome.FAILED)
"""The outcomes that break the promise of `wrap_blocks`."""


@dataclass(eq=False)
class Run:
    """One training: what was noted on the way, the state in the end, and the error that ended it early in a step."""

    notes: list[Note] = field(default_factory=list)
    state: Mapping[str, Any] = field(default_factory=dict)
    error: Exception | None = None
    step: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one case, and everything that differs or the message of the error."""

    outcome: Outcome
    details: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """The first detail without what differs from case to case."""
        line = re.sub(rf"{FuzzBlock.__name__} layers\.\d+", "BLOCK", " ".join("".join(self.details[:1]).split()))
        return re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "N", line)[:140]


def untreated(model: nn.Module, case: Case) -> Callable[[], None]:
    """Leave the model without checkpointing, as the reference."""
    return lambda: None


def operated(model: nn.Module, case: Case) -> Callable[[], None]:
    """Apply `wrap_blocks` with the options of the case."""
    return wrap_blocks(model, **case.options).undo


def train(case: Case, treatment: Treatment) -> Run:
    """Train the model of a case from its seed. An error of the training is part of the result."""
    _seed(case.seed)
    model = case.make_model()
    training = Training(model, lambda: treatment(model, case))
    run = Run(training.notes)
    try:
        training.undo = training.treat()
        _seed(case.seed + 1)
        LOOPS[case.loop](training)
        run.state = state_of(model)
    except Exception as error:
        run.error = error
    run.step = training.steps
    return run


def _seed(seed: int) -> None:
    """Seed the global generators. `torch.manual_seed` would format a traceback for each device that is not there."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)


def state_of(model: nn.Module) -> dict[str, Any]:
    """Return weights, buffers and gradients, the numbers on modules, their modes too, and the generators."""
    numbers = {
        f"{name}.{key}": value
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, (bool, int, float))
    }
    generators = {"torch generator": torch.get_rng_state(), "python generator": hash(random.getstate())}
    return {**numbers, **generators, **model.state_dict(), **gradients_of(model)}


def judge(case: Case, treatment: Treatment = operated) -> Result:
    """Train with and without a treatment, and compare."""
    theirs = train(case, untreated)
    noted = [note.value for note in theirs.notes if note.value is not None]
    if theirs.error is not None or not all(bool(value.isfinite().all()) for value in noted):
        return Result(Outcome.INVALID, (str(theirs.error or "not finite"),))
    ours = train(case, treatment)
    tolerance = _CACHES if {"EmptyCache", "LearnedPrefix"} & set(case.features) else 0.0
    wrong = dict(_wrong(ours, theirs, tolerance))
    error, message = ours.error, str(ours.error)
    if wrong and not (isinstance(error, SurgeryError) and min(wrong.values()) == ours.step):
        return Result(Outcome.SILENT, tuple(wrong))
    if isinstance(error, SurgeryError) and FuzzBlock.__name__ in message:
        return Result(Outcome.REFUSED, (message,))
    if error is not None:
        return Result(Outcome.FAILED, (f"{type(error).__name__}: {message}",))
    names = [name for name in theirs.state if not _same(ours.state.get(name), theirs.state[name], tolerance)]
    return Result(Outcome.STATE, tuple(names)) if names else Result(Outcome.EQUAL)


def _wrong(ours: Run, theirs: Run, tolerance: float) -> Iterator[tuple[str, int]]:
    """Yield what was noted otherwise, up to an error, and in which step."""
    if ours.error is None and len(ours.notes) != len(theirs.notes):
        yield f"{len(ours.notes)} notes instead of {len(theirs.notes)}", 0
    for one, other in zip(ours.notes, theirs.notes, strict=False):
        if one.label != other.label or not _same(one.value, other.value, tolerance):
            yield f"{one.label} in step {one.step}: {_shown(one.value)} instead of {_shown(other.value)}", one.step


def _same(one: Any, other: Any, tolerance: float) -> bool:
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return type(one) is type(other) and bool(one == other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    most = tolerance * float(other.double().abs().max()) if tolerance and other.numel() else 0.0
    return torch.allclose(one.double(), other.double(), rtol=0, atol=most)


def _shown(value: Tensor | None) -> str:
    return "none" if value is None else f"{[f'{number:.6g}' for number in value.double().reshape(-1)[:3].tolist()]}"
